# What all rules share: the plan, the run lock, paths.
import shlex
import sys
from pathlib import Path

ROOT = Path(workflow.basedir)
if not (ROOT / "perfscribe").is_dir():  # begun by workflow/Snakefile
    ROOT = ROOT.parent
sys.path.insert(0, str(ROOT))

from perfscribe.plan import cluster
from perfscribe.show import drawn
from perfscribe.run import session

# A job on another machine takes the plan as it stands; only the process that the user started resolves it.
SESSION = session.begin(
    ROOT,
    config,
    decides=workflow.is_main_process,
    executor=cluster.executor_asked_for(sys.argv[1:]),
)
PLAN = SESSION.plan
SITE = PLAN.site

RESULTS = f"results/{SITE}"
FIGURE_KINDS = drawn.figure_kinds(ROOT / RESULTS)
REPORT = f"report/{SITE}/report.md"
PAGE = f"report/{SITE}/report.html"
SUMMARY = f"{RESULTS}/summary.json"
VERDICT = f"{RESULTS}/verdict.txt"
# Without --cores (a cluster's profile gives jobs instead) one core; the profile may set more for a rule.
ALL_CORES = (
    workflow.resource_settings.cores if workflow.is_main_process else None
) or 1

# `program LOG SCRIPT ARGUMENTS` runs a script with this interpreter; where it fails, the end of its log is shown.
# (Braces are doubled, as in any shell command of Snakemake.)
prologue = ""
if PLAN.cluster is not None and workflow.is_main_process:
    # Jobs that are queued or run at a time, and no more than --jobs or the profile allows.
    _most = PLAN.cluster.settings["max_jobs"]
    workflow.register_resource(
        "_nodes", min(_most, workflow.resource_settings.nodes or _most)
    )
elif PLAN.cluster is not None:
    prologue = PLAN.cluster.prologue()
program = (
    f'program() {{ local log=$1; shift; {shlex.quote(sys.executable)} "$@" >"$log" 2>&1'
    ' || { tail -n 20 "$log" >&2; echo "log: $log" >&2; return 1; }; }; '
)
shell.prefix((prologue + program).replace("{", "{{").replace("}", "}}"))

# What jobs ask a cluster for; on one machine none of it counts.
SMALL_JOB = {name: SESSION.resources(name) for name in cluster.SMALL_JOB}
MEASURING_JOB = {name: SESSION.resources(name) for name in cluster.MEASURING_JOB}


wildcard_constraints:
    experiment="[a-z0-9_]+",
    shard="[0-9]+",
    dataset="[a-z0-9_]+",


localrules:
    report,
    write_report,
    write_html,
    verdict,
    track,


onstart:
    SESSION.start()


onsuccess:
    SESSION.end(REPORT, PAGE)


onerror:
    SESSION.end(REPORT, PAGE, failed=True)


def cores_of_job(wildcards):
    """Cores that a measuring job asks for: its GPU's part where others may run beside it, else all."""
    return SESSION.threads(wildcards.experiment, int(wildcards.shard), ALL_CORES)


def cores_of_data_job(wildcards):
    """Cores that a job asks for which makes a data set: all where it would else run beside a measuring job."""
    return ALL_CORES if PLAN.at_a_time > 1 else 1


def records_of(experiment):
    """Records files of all shards of an experiment."""
    return [
        f"{RESULTS}/records/{experiment}/{shard}.jsonl"
        for shard in range(PLAN.shards[experiment])
    ]


def all_records():
    """Records files of all experiments."""
    return [path for experiment in PLAN.shards for path in records_of(experiment)]


def in_snakemake_report(path, kind, name, experiment):
    """An output as `snakemake --report` shows it: by chapter and experiment."""
    return report(
        path,
        category=name.split(".")[0],
        subcategory=experiment,
        labels={"what": kind, "name": name},
    )


def shown_of(experiment):
    """Tables, further files, figures with their captions of an experiment."""
    shown = PLAN.presentations[experiment]
    tables = [
        f"{RESULTS}/tables/{table}.{kind}"
        for table in shown.tables
        for kind in ("csv", "json")
    ]
    files = [f"{RESULTS}/tables/{name}" for name in shown.files]
    figures = [
        f"report/{SITE}/figures/{figure}.{kind}"
        for figure in shown.figures
        for kind in FIGURE_KINDS
    ]
    captions = f"{RESULTS}/tables/{experiment}.figures.json"
    return [*tables, *files, *figures, captions]


def all_shown():
    """Tables and figures of all experiments."""
    return [path for experiment in PLAN.presentations for path in shown_of(experiment)]


def records_behind_self_tests(wildcards):
    """For `preflight`, the records of what waits for its tests: each of their jobs makes those that it needs itself."""
    if wildcards.experiment != "preflight":
        return []
    return [path for experiment in PLAN.gated for path in records_of(experiment)]


def data_digests(wildcards):
    """The digests of the data sets that an experiment reads; they change only with the arrays."""
    return [
        f"{RESULTS}/data/{name}.digest"
        for name in PLAN.experiment_datasets[wildcards.experiment]
    ]


def tracked():
    """The list of the runs that the chosen tracker has; nothing without one."""
    return (
        []
        if SESSION.tracker == "none"
        else f"{RESULTS}/tracking/{SESSION.tracker}.json"
    )


def data_files(wildcards):
    """The data files themselves, whatever their time stamps."""
    return [
        ancient(f"{RESULTS}/data/{name}/{file}")
        for name in PLAN.experiment_datasets[wildcards.experiment]
        for file in PLAN.datasets[name]
    ]


def refuse_a_second_run(wildcards):
    """No input: evaluated while the graph is built, when it is known whether this is more than a dry run."""
    if not workflow.dryrun:
        SESSION.refuse_a_second_run()
    return []
