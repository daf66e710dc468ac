# Measuring: one job a shard. The journal, not Snakemake, knows which cells are done; a job replays those.
rule measure:
    input:
        plan=f"{RESULTS}/plan/measure-{{experiment}}-{{shard}}.json",
        digests=lambda wildcards: FILES.digests_for(wildcards.experiment),
        # whatever their time stamps
        data=lambda wildcards: ancient(FILES.data_for(wildcards.experiment)),
    output:
        f"{RESULTS}/records/{{experiment}}/{{shard}}.jsonl",
    log:
        f"logs/{SITE}/measure_{{experiment}}_{{shard}}.log",
    # Seconds and memory of the job; nothing reads it.
    benchmark:
        f"{RESULTS}/benchmarks/measure_{{experiment}}_{{shard}}.tsv"
    # Before anything is drawn: tables and figures then follow on all cores at a time, and no core is left over whenever
    # the next measuring waits for the last of a few. Data sets come before both.
    priority: 1
    # A committed site is only shown: copying from its journal is no job for a cluster.
    localrule: SESSION.read_only
    # Timed work shares the machine with nothing, so that a job asks for all cores; but where cells need one GPU each,
    # as many jobs run at a time as there are GPUs, each on a GPU and on cores of its own.
    threads: lambda w: SESSION.threads(w.experiment, int(w.shard), ALL_CORES)
    resources:
        **SESSION.measuring_job,
    params:
        replay="--replay" if SESSION.read_only else "",
    message:
        "measure {wildcards.experiment}, shard {wildcards.shard}"
    shell:
        "{PYTHON:q} workflow/scripts/measure.py --plan {input.plan:q} --out {output:q} {params.replay} > {log:q} 2>&1"
