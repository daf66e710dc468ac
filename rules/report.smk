# The report, always written, and the verdict on the run, which may fail.
rule write_report:
    input:
        refuse_a_second_run,
        plan=f"{RESULTS}/plan/report.json",
        records=all_records(),
        shown=all_shown(),
    output:
        REPORT,
    log:
        f"logs/{SITE}/report.log",
    conda:
        "../workflow/envs/perfscribe.yaml"
    shell:
        "program {log:q} workflow/scripts/report.py --plan {input.plan:q} --records {input.records:q} --out {output:q}"


rule verdict:
    input:
        report=REPORT,
        records=all_records(),
    output:
        VERDICT,
    log:
        f"logs/{SITE}/verdict.log",
    conda:
        "../workflow/envs/perfscribe.yaml"
    shell:
        "program {log:q} workflow/scripts/verdict.py --report {input.report:q} --records {input.records:q}"
        " --out {output:q}"
