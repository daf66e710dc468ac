# Runs for an experiment tracker, after the report is written: from records, so that nothing measured knows of it.
rule track:
    input:
        report=REPORT,
        records=FILES.records(),
    output:
        f"{RESULTS}/tracking/{{tracker}}.json",
    log:
        f"logs/{SITE}/track_{{tracker}}.log",
    retries: 0
    shell:
        "{PYTHON:q} workflow/scripts/track.py --records {input.records:q} --out {output:q} > {log:q} 2>&1"
