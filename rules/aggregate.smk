# From records to tables and figures: one rule an experiment, as each declares what it makes. They run where
# Snakemake does: seconds each, and a job of a cluster would take longer to start and to be seen to end.
for _experiment, _shown in PLAN.presentations.items():

    rule:
        name:
            f"present_{_experiment}"
        input:
            plan=f"{RESULTS}/plan/present-{_experiment}.json",
            records=[
                path for name in PLAN.sources(_experiment) for path in records_of(name)
            ],
        output:
            tables=[
                in_snakemake_report(
                    f"{RESULTS}/tables/{table}.csv", "table", table, _experiment
                )
                for table in _shown.tables
            ],
            descriptions=[f"{RESULTS}/tables/{table}.json" for table in _shown.tables],
            files=[f"{RESULTS}/tables/{name}" for name in _shown.files],
            captions=f"{RESULTS}/tables/{_experiment}.figures.json",
            figures=[
                in_snakemake_report(
                    f"report/{SITE}/figures/{figure}.svg",
                    "figure",
                    figure,
                    _experiment,
                )
                for figure in _shown.figures
            ],
            pictures=[
                f"report/{SITE}/figures/{figure}.{kind}"
                for figure in _shown.figures
                for kind in FIGURE_KINDS[1:]
            ],
        log:
            f"logs/{SITE}/present_{_experiment}.log",
        retries: 0
        localrule: True
        conda:
            "../workflow/envs/perfscribe.yaml"
        shell:
            "program {log:q} workflow/scripts/present.py --plan {input.plan:q} --records {input.records:q}"
