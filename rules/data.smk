# Data sets, generated or tokenised: built once, from their parameters and the code that makes them.
for _dataset in PLAN.datasets:

    rule:
        name:
            f"generate_{_dataset}"
        input:
            plan=f"{RESULTS}/plan/data-{_dataset}.json",
        output:
            digest=f"{RESULTS}/data/{_dataset}.digest",
            files=FILES.data(_dataset),
        log:
            f"logs/{SITE}/generate_{_dataset}.log",
        # Before the measuring jobs that do not wait for it: those may hold all nodes for long. The scheduler adds up
        # priorities, so this is more than all jobs that run at a time have together.
        priority: 1000
        # All where it would else run beside a measuring job.
        threads: ALL_CORES if PLAN.at_a_time > 1 else 1
        resources:
            **SMALL_JOB,
        message:
            f"make data set {_dataset}"
        shell:
            "{PYTHON:q} workflow/scripts/generate_data.py --plan {input.plan:q} > {log:q} 2>&1"
