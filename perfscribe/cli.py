"""Entry point of `./run`: handles its own verbs and passes everything else to Snakemake."""

import signal

STOPPED = signal.getsignal(signal.SIGINT)
if STOPPED is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of the imports below

import argparse
import functools
import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from perfscribe import config as configuration
from perfscribe.base import called_from, one_line, registry  # noqa: F401 (called_from takes its variable out of the environment)
from perfscribe.config import reading
from perfscribe.config.errors import hint
from perfscribe.instruments import tools
from perfscribe.plan import subjects
from perfscribe.plan.plan import planned_cells
from perfscribe.run import session
from perfscribe.run.stopping import Command

ROOT = Path(__file__).resolve().parents[1]

HELP = """\
./run report [OPTIONS]        measure what is missing and write report/<site>/report.md
./run plan [EXPERIMENT ...]    what is to be measured, with an estimate of time; the cells of those experiments
./run doctor                  this machine: what it measures, what is missing and for which experiments
./run remeasure EXPERIMENT [FACTOR=LEVEL ...] [status=STATUS] [--config site=NAME]
                              discard finished cells, so that the next report measures them again
./run fetch-data squad        fetch SQuAD v1.1 for the FSDP workshop's experiments, into downloads/squad
./run compare A B [--experiment NAME ...] [--csv FILE] [--fail-on slower] [--threshold PERCENT]
                              two sites, or commits of site local, figure by figure: faster, slower, cannot tell
./run launch --scheduler slurm|pbs --nodes N --ranks-per-node R [--launcher srun|mpiexec|torchrun]
             [--profile torch|nsys] [-- COMMAND]
                              print a job script that starts ranks there
./run fill FILE.md [--site NAME] [--overwrite] [--dry-run]
                              fill the empty tables of a Markdown file from a site's results
./run chapter FILE [--site NAME]
                              print one problem of a chapter, such as chapters/cs336/nsys_profile.md, as a site has it
./run publish NAME            make a site of this checkout's own results that can be committed
./run publish --replace NAME  the same in the place of that site; publish --continue NAME puts its journals back
./run publish --redraw [SITE ...]
                              draw published sites again from their journals; without a name, all of them
./run test [PYTEST OPTIONS]   format, lint, types, tests
./run help                    this text
./run --OPTION ...            goes to snakemake, as in ./run --profile slurm report; so do files in results/

OPTIONS go to snakemake, as in ./run report --config preset=tiny site=local
`./run --system VERB` uses the Python at hand in place of the environment in .venv.
"""

# Explicit, so that neither profiles nor later defaults change what an edit reruns.
TRIGGERS = ("mtime", "params", "input", "code")
# Advice of `snakemake --lint` that is not taken: rules run in the environment of Snakemake itself, by its interpreter.
UNHEEDED = {
    "Specify a conda environment or container for each rule.",
    "Shell command directly uses variable PYTHON from outside of the rule",
}


def snakemake(*arguments: str) -> list[str]:
    """Command line of this environment's Snakemake."""
    return [sys.executable, "-m", "snakemake", *arguments]


def _settings(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split Snakemake's arguments into config settings and all other words."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", "-C", nargs="*", action="extend", default=[])
    parser.add_argument("--configfile", "--configfiles", nargs="*", action="extend", default=[])
    return parser.parse_known_args(arguments)


def command_line_config(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the KEY=VALUE words of --config, each value read as YAML; SystemExit if malformed or a key repeats."""
    found: dict[str, Any] = {}
    for word in _settings(arguments)[0].config:
        key, equals, text = word.partition("=")
        if not equals:
            sys.exit(f"config: --config: got {word!r}, expected KEY=VALUE")
        if key in found:
            sys.exit(f"config: --config: {key} is given twice")
        found[key] = reading.value(text)
    return found


def other_words(verb: str, arguments: Sequence[str], names: Sequence[str] = ()) -> list[str]:
    """Return words outside --config and --configfile; SystemExit (one line) unless all are among the names."""
    words = _settings(arguments)[1]
    for word in words:
        if word not in names:
            expected = f"expected {'an experiment, ' if names else ''}--config KEY=VALUE ... or nothing"
            sys.exit(f"run: {verb}: got {word!r}, {expected}{hint(word, names)}")
    return words


def read_config(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Read config.yaml with the command line's settings and files; SystemExit with one line if invalid.

    Sets the environment variables of the config's tools.
    """
    try:
        overrides: dict[str, Any] = {}
        for name in _settings(arguments)[0].configfile:
            overrides = configuration.merged(overrides, configuration.load(ROOT / name))
        overrides = configuration.merged(overrides, command_line_config(arguments))
        raw = configuration.load(ROOT / "config.yaml", overrides)
        configuration.check(raw)
    except configuration.ConfigError as error:
        sys.exit(f"config: {error}")
    tools.use(raw.get("tools", {}), ROOT)
    return raw


def writable(folder: Path, variable: str = "") -> None:
    """Create the folder if missing; SystemExit (one line) if not writable, naming the variable that can move it."""
    try:
        folder.resolve().mkdir(parents=True, exist_ok=True)  # also behind a link, as where a scratch disk was purged
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(4096))
    except OSError as error:
        instead = f"; {variable} may name another folder" if variable else ""
        sys.exit(f"run: {folder}: {error.strerror}{instead}")


def report(arguments: Sequence[str]) -> int:
    """Measure what is missing and write the report."""
    if arguments and not arguments[0].startswith("-"):
        sys.exit(f"run: report: got {arguments[0]!r}, expected --config KEY=VALUE ... or options of Snakemake")
    raw = read_config(arguments)
    cores = _all_cores(arguments)
    safe = ["--nolock", "--rerun-incomplete", "--rerun-triggers", *TRIGGERS]
    before = _last_start()
    site = session.site_of(raw)
    path = f"report/{site}/report.md"
    dry = {"-n", "--dry-run", "--dryrun"} & set(arguments)
    for name in () if dry else (f"results/{site}", f"report/{site}", "logs", ".snakemake", ".perfscribe"):
        writable(ROOT / name)
    if (temporary := Path(os.environ.get("TMPDIR") or "/tmp")).is_dir():
        writable(temporary, "TMPDIR")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    writable(cache, "XDG_CACHE_HOME")  # Snakemake caches sources here
    # On a cluster not quiet: only Snakemake reports submission errors and the logs of lost jobs.
    named = any(word.startswith(("--profile", "--executor", "-e")) for word in arguments)
    quiet = [] if named or "SNAKEMAKE_PROFILE" in os.environ else ["--quiet", "all"]
    plain = ["--nocolor"] if os.environ.get("NO_COLOR") else []  # Snakemake ignores NO_COLOR
    words = [sys.executable, "-m", "perfscribe.run.engine", "report", *cores, *safe, *quiet, *plain, *arguments]
    code = Command(words, ROOT).wait()
    if code == 0 and not dry and _last_start() == before and (ROOT / path).is_file():
        print(f"nothing to do; report: {path}")
    return code


def _all_cores(arguments: Sequence[str]) -> list[str]:
    """Arguments to use all cores, unless the user says where jobs run."""
    where = ("-c", "--cores", "-j", "--jobs", "--profile")
    return [] if any(argument.startswith(where) for argument in arguments) else ["--cores", "all"]


def _last_start() -> int:
    """Time at which a run of this checkout last started jobs, in ns; 0 for never."""
    started = ROOT / session.STARTED
    return started.stat().st_mtime_ns if started.exists() else 0


def test(arguments: Sequence[str]) -> int:
    """Run format, lint, type checks and tests; stop at the first failure."""
    python = sys.executable
    steps = [
        [python, "-m", "ruff", "check", "."],
        [python, "-m", "ruff", "format", "--check", "."],
        [python, "-m", "snakefmt", "--check", "Snakefile", "workflow/Snakefile", "rules"],
        [python, "-m", "mypy"],
        [str(Path(python).with_name("lint-imports")), "--no-logo", "--no-cache"],
        snakemake("--lint"),
        # In the order of tests/conftest.py; three workers on two cores, since many tests wait.
        [python, "-m", "pytest", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", *arguments],
    ]
    for step in steps:
        print("run:", Path(step[0]).name, *step[1:], flush=True)
        code = _lint(step) if "--lint" in step else subprocess.run(step, cwd=ROOT).returncode
        if code:
            return code
    return 0


def _lint(command: Sequence[str]) -> int:
    """Run Snakemake's lint; return 0 if all advice is UNHEEDED, else print all of it."""
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    advice = set(re.findall(r"(?m)^    \* (.+):$", done.stderr))
    if not done.returncode or (advice and advice <= UNHEEDED):
        return 0
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode


def plan(arguments: Sequence[str]) -> int:
    """Print cells to measure and expected time per experiment, and all cells of the experiments named."""
    from perfscribe.verbs import overview

    named = other_words("plan", arguments, registry.measured())
    raw = read_config(arguments)
    print(overview.describe(ROOT, session.make_plan(ROOT, raw), named))
    return 0


def doctor(arguments: Sequence[str]) -> int:
    """Print the machine and what each experiment lacks on it."""
    from perfscribe.verbs import doctor as machine

    other_words("doctor", arguments)
    raw = read_config(arguments)
    preset = session.resolve_preset(raw.get("preset", "auto"))
    units = [(name, planned_cells(raw, name, preset)) for name in registry.measured()]
    named = subjects.paths(configuration.resolve(raw, preset), ROOT)
    print(machine.report(units, [subjects.read(*one) for one in named.items()]))
    return 0


def own(module: str, arguments: Sequence[str]) -> int:
    """Run a verb's module, which reads the config if needed."""
    main: Callable[..., int] = importlib.import_module(f"perfscribe.verbs.{module}").main
    return main(ROOT, arguments, read_config)


def show_help(arguments: Sequence[str]) -> int:
    """Print the help text."""
    print(HELP, end="")
    return 0


VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "report": report,
    "test": test,
    "plan": plan,
    "doctor": doctor,
    "remeasure": functools.partial(own, "remeasure"),
    "compare": functools.partial(own, "compare.verb"),
    "launch": functools.partial(own, "launch"),
    "fill": functools.partial(own, "fill.verb"),
    "publish": functools.partial(own, "publish"),
    "chapter": functools.partial(own, "chapter"),
    "fetch-data": functools.partial(own, "fetch_data"),
    "help": show_help,
}
EXPLAINED = ("chapter", "compare", "fill", "launch", "test")  # verbs with their own --help


def main(arguments: Sequence[str]) -> int:
    """Run a verb, or pass everything to Snakemake."""
    verb = arguments[0] if arguments else "--help"
    if verb in ("-h", "--help") or (verb not in EXPLAINED and arguments[1:2] in (["-h"], ["--help"])):
        return show_help(())
    if verb in VERBS:
        return VERBS[verb](arguments[1:])
    names_a_file = arguments[0].startswith(("results/", "report/"))
    if not names_a_file and not arguments[0].startswith("-"):  # options are Snakemake's, e.g. --report
        sys.exit(f"run: {arguments[0]!r} is no verb{hint(arguments[0], VERBS)} (./run help lists them)")
    read_config(arguments)
    os.chdir(ROOT)
    os.execv(
        sys.executable, snakemake("--show-failed-logs", *arguments, *(_all_cores(arguments) if names_a_file else []))
    )


def entry() -> int:
    """Run main() with this process's arguments; expected errors become one line."""
    for name in ("stdout", "stderr"):  # None if closed by the caller
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for the life of this process)
        getattr(sys, name).reconfigure(errors="backslashreplace")  # for ± and × if the terminal's encoding lacks them
    signal.signal(signal.SIGINT, STOPPED)
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
        return status
    except OSError as error:
        reader_left = isinstance(error, BrokenPipeError)  # e.g. in ./run compare A B | head
        if not reader_left:
            print(f"run: {error.filename or 'a file or standard output'}: {one_line.why(error)}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for output that Python still flushes
        return 128 + signal.SIGPIPE if reader_left else 1
    except ValueError as error:
        sys.exit(f"run: {error}")
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(entry())
