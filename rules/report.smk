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
    shell:
        "{PYTHON:q} workflow/scripts/report.py --plan {input.plan:q} --records {input.records:q}"
        " --out {output:q} >{log:q} 2>&1" + TELL


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
        " --out {output:q} 2>{log:q} || {{ cat {log:q} >&2; exit 1; }}"
