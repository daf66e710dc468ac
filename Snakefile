# Perfscribe: from config.yaml to report/<site>/report.md and report.html. Table of contents; the rules lie in rules/.
from snakemake.utils import min_version

min_version("9.27")


report: "workflow/report/workflow.rst"


include: "rules/common.smk"
include: "rules/data.smk"
include: "rules/measure.smk"
include: "rules/nsys.smk"
include: "rules/aggregate.smk"
include: "rules/report.smk"


# One report, the default target: the Markdown, its HTML twin and the verdict that sets the exit status. What they were made of is
# named too, since Snakemake takes a missing file in the middle for one that nobody wants.
rule report:
    default_target: True
    input:
        REPORT,
        PAGE,
        SUMMARY,
        VERDICT,
        FILES.records(),
        FILES.shown(),
