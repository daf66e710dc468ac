# Reports of Nsight Systems, whoever made them: put NAME.nsys-rep into results/SITE/nsys/ and ask for one of these files.
rule nsys_export:
    input:
        "results/{site}/nsys/{name}.nsys-rep",
    output:
        "results/{site}/nsys/{name}.sqlite",
    log:
        "logs/{site}/nsys_export_{name}.log",
    resources:
        **SMALL_JOB,
    shell:
        "{PYTHON:q} workflow/scripts/nsys_export.py --report {input:q} --out {output:q} > {log:q} 2>&1"


rule nsys_kernels:
    input:
        "results/{site}/nsys/{name}.sqlite",
    output:
        "results/{site}/nsys/{name}.kernels.csv",
    log:
        "logs/{site}/nsys_kernels_{name}.log",
    resources:
        **SMALL_JOB,
    shell:
        "{PYTHON:q} workflow/scripts/nsys_kernels.py --export {input:q} --out {output:q} > {log:q} 2>&1"
