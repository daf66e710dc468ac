# Measuring: one job a shard. The journal, not Snakemake, knows which cells are done; a job replays those.
def data_digests(wildcards):
    """The digests of the data sets that an experiment reads; they change only with the arrays."""
    return [
        f"{RESULTS}/data/{name}.digest"
        for name in PLAN.experiment_datasets[wildcards.experiment]
    ]


def data_files(wildcards):
    """The data files themselves, whatever their time stamps."""
    return [
        ancient(f"{RESULTS}/data/{name}/{file}")
        for name in PLAN.experiment_datasets[wildcards.experiment]
        for file in PLAN.datasets[name]
    ]


rule measure:
    input:
        plan=f"{RESULTS}/plan/measure-{{experiment}}-{{shard}}.json",
        digests=data_digests,
        data=data_files,
    output:
        f"{RESULTS}/records/{{experiment}}/{{shard}}.jsonl",
    log:
        f"logs/{SITE}/measure_{{experiment}}_{{shard}}.log",
    # Timed work shares the machine with nothing: each job asks for all cores.
    threads: workflow.cores
    params:
        folder=RESULTS,
        replay="--replay" if SESSION.read_only else "",
    shell:
        "{PYTHON:q} workflow/scripts/measure.py --plan {input.plan:q} --site-folder {params.folder:q}"
        " --out {output:q} {params.replay} >{log:q} 2>&1" + TELL
