# The report, always written, and the verdict on the run, which may fail.
rule write_report:
    input:
        refuse_a_second_run,
        plan=f"{RESULTS}/plan/report.json",
        records=all_records(),
        tables=[
            f"{RESULTS}/tables/{table}.csv"
            for shown in PLAN.presentations.values()
            for table in shown.tables
        ],
        findings=[
            f"{RESULTS}/tables/{experiment}.findings.json"
            for experiment in PLAN.presentations
        ],
        figures=[
            f"report/{SITE}/figures/{figure}.svg"
            for shown in PLAN.presentations.values()
            for figure in shown.figures
        ],
    output:
        REPORT,
    log:
        f"logs/{SITE}/report.log",
    shell:
        "{PYTHON:q} workflow/scripts/report.py --plan {input.plan:q} --records {input.records:q}"
        " --out {output:q} >{log:q} 2>&1"


rule verdict:
    input:
        report=REPORT,
        records=all_records(),
    output:
        VERDICT,
    log:
        f"logs/{SITE}/verdict.log",
    shell:
        "{PYTHON:q} workflow/scripts/verdict.py --report {input.report:q} --records {input.records:q}"
        " --out {output:q} 2>{log:q} || (cat {log:q} >&2; exit 1)"
