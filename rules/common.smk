# Shared by all rules: the run with its plan and its lock, paths of the site's files, the Python that runs their scripts.
import sys
from pathlib import Path

ROOT = Path(workflow.basedir)
if not (ROOT / "perfscribe").is_dir():  # begun by workflow/Snakefile
    ROOT = ROOT.parent

from perfscribe.run import session
from perfscribe.run.targets import Targets

# config.yaml is read by the package, as all of `./run` reads it: YAML 1.2, each key once, one line on a mistake. So
# `config` holds only settings of the command line, and neither `configfile:` nor validate() could take its place.
#
# Written while this file is read, by the process that the user started and no other: the run lock, files of plan/ whose
# content changes (they are inputs) and the cache of what is found in sources. Deleted: outputs that differ from their
# checksums, and locks of a killed Snakemake. A process that starts no job puts plan and outputs back.
SESSION = session.begin(
    ROOT, config, decides=workflow.is_main_process, arguments=sys.argv[1:]
)
PLAN, SITE = SESSION.plan, SESSION.plan.site
RESULTS = f"results/{SITE}"
FILES = Targets(PLAN)
REPORT = f"{FILES.report}/report.md"
PAGE = f"{FILES.report}/report.html"
SUMMARY = f"{RESULTS}/summary.json"
VERDICT = f"{RESULTS}/verdict.txt"
# Without --cores (a cluster's profile gives jobs instead) one core; the profile may set more for a rule.
ALL_CORES = (
    workflow.resource_settings.cores if workflow.is_main_process else None
) or 1
if PLAN.cluster is not None and workflow.is_main_process:
    workflow.register_resource(
        "_nodes", PLAN.cluster.jobs_at_a_time(workflow.resource_settings.nodes)
    )
# What a job of one core asks a cluster for.
SMALL_JOB = PLAN.cluster.small_job() if PLAN.cluster is not None else {}
PYTHON = sys.executable
if PLAN.cluster is not None and not workflow.is_main_process:
    shell.prefix(PLAN.cluster.prologue(ROOT).replace("{", "{{").replace("}", "}}"))


wildcard_constraints:
    experiment="[a-z0-9_]+",
    shard="[0-9]+",
    dataset="[a-z0-9_]+",
    site="[a-z0-9][a-z0-9_-]*",
    name="[A-Za-z0-9][A-Za-z0-9._=-]*",


localrules:
    report,
    write_report,
    write_html,
    verdict,


onstart:
    from perfscribe.report.report import notes

    with session.one_line_errors():  # before measuring, which may take an hour
        for chapter in PLAN.chapters:
            notes(ROOT, SITE, chapter)
    SESSION.start()


onsuccess:
    SESSION.end(REPORT, PAGE)


onerror:
    SESSION.end(REPORT, PAGE, failed=True)


def in_snakemake_report(path, kind, experiment):
    """An output as `snakemake --report` shows it: by chapter and experiment."""
    return report(
        path,
        category=Path(path).name.split(".")[0],
        subcategory=experiment,
        labels={"what": kind, "name": Path(path).stem},
    )
