# Data sets, generated or tokenised: built once, from their parameters and the code that makes them.
for _dataset, _files in PLAN.datasets.items():

    rule:
        name:
            f"generate_{_dataset}"
        input:
            plan=f"{RESULTS}/plan/data-{_dataset}.json",
        output:
            digest=f"{RESULTS}/data/{_dataset}.digest",
            files=[f"{RESULTS}/data/{_dataset}/{name}" for name in _files],
        log:
            f"logs/{SITE}/generate_{_dataset}.log",
        # Before the measuring jobs that do not wait for it: those may hold all nodes for long.
        priority: 2
        conda:
            "../workflow/envs/perfscribe.yaml"
        threads: cores_of_data_job
        resources:
            **SMALL_JOB,
        shell:
            "program {log:q} workflow/scripts/generate_data.py --plan {input.plan:q}"
