# From records to tables and figures: one rule an experiment, as each declares what it makes. They run where
# Snakemake does: seconds each, and a job of a cluster would take longer to start and to be seen to end.
for _experiment in PLAN.presentations:

    rule:
        name:
            f"present_{_experiment}"
        input:
            plan=f"{RESULTS}/plan/present-{_experiment}.json",
            records=FILES.records_for(_experiment),
        output:
            [
                in_snakemake_report(table, "table", _experiment)
                for table in FILES.tables_of(_experiment, "csv")
            ],
            [
                in_snakemake_report(figure, "figure", _experiment)
                for figure in FILES.figures_of(_experiment)
            ],
            FILES.tables_of(_experiment, "json"),
            FILES.captions_of(_experiment),
        log:
            f"logs/{SITE}/present_{_experiment}.log",
        retries: 0
        localrule: True
        shell:
            "{PYTHON:q} workflow/scripts/present.py --plan {input.plan:q} --records {input.records:q} > {log:q} 2>&1"
