# The report, always written, as Markdown and as HTML, and the verdict on the run, which may fail.
rule write_report:
    input:
        plan=f"{RESULTS}/plan/report.json",
        records=FILES.records(),
        shown=FILES.shown(),
    output:
        report=REPORT,
        summary=SUMMARY,
    log:
        f"logs/{SITE}/report.log",
    retries: 0
    shell:
        "{PYTHON:q} workflow/scripts/report.py --plan {input.plan:q} --records {input.records:q}"
        " --out {output.report:q} --summary {output.summary:q} > {log:q} 2>&1"


# The same as one HTML file, figures and tables within. What it takes in was there before the report.
rule write_html:
    input:
        plan=f"{RESULTS}/plan/page.json",
        report=REPORT,
    output:
        report(
            PAGE,
            caption="../workflow/report/page.rst",
            category="report",
            labels={"what": "page", "name": "the report"},
        ),
    log:
        f"logs/{SITE}/html.log",
    retries: 0
    shell:
        "{PYTHON:q} workflow/scripts/write_html.py --plan {input.plan:q} --report {input.report:q} --out {output:q}"
        " > {log:q} 2>&1"


rule verdict:
    input:
        report=REPORT,
        summary=SUMMARY,
        records=FILES.records(),
    output:
        VERDICT,
    log:
        f"logs/{SITE}/verdict.log",
    retries: 0
    shell:
        "{PYTHON:q} workflow/scripts/verdict.py --records {input.records:q} --summary {input.summary:q}"
        " --out {output:q} > {log:q} 2>&1"
