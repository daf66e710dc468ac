"""The front door: `./run`, its environment and its verbs."""

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import types
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest
from workspace import CHEAP, ROOT, Workspace

from perfscribe import cli
from perfscribe.base import files

ENVIRONMENT_FILES = ("requirements.in", "requirements.lock", "requirements-torch.txt")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the command line takes for the checkout; config.yaml is the committed one."""
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    shutil.copy(ROOT / "config.yaml", tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A project with one light experiment and the files of its environment, in a folder of an odd name."""
    made = Workspace(tmp_path_factory.mktemp("cli") / "a '\"\n#\\*;&%$HOMEü")
    made.only()
    made.add_experiment("probe", CHEAP, n=[1, 2, 3])
    for name in ENVIRONMENT_FILES:
        shutil.copy(ROOT / name, made.root)
    return made


def message(arguments: Sequence[str]) -> str:
    """The one line with which the command line ends, exit code 1."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    text = ended.value.code
    assert isinstance(text, str) and len(text.splitlines()) == 1  # Python prints it and exits with 1
    return text


# --- verbs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["help"], ["-h"], ["plan", "--help"]])
def test_help_is_had_in_every_form(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == cli.HELP


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--config site={", r'site: got "{", expected a name that .* \(text of lower-case .*'),
        ("--config=seed=-1", r"seed: got -1, expected a whole number .*"),
        ("--config seed=3 site=notes", r'site: got "notes", expected a name that no folder of the project has .*'),
        (f"-C seed={'9' * 6000}", r'seed: got "9+ …, expected a whole number .*'),
        (f"-C experiments={'[' * 600}", r'experiments: got "\[+ …, expected a section .*'),
        ("-C chapters=[a=b]", r'chapters\[0\]: got "a=b", expected .*'),
        ("--config seed=1 x", r"--config: got 'x', expected KEY=VALUE"),
        ("--config seed=1 --config seed=2", r"--config: seed is given twice"),
    ],
)
def test_a_bad_setting_is_one_line(project: Path, words: str, line: str) -> None:
    assert re.fullmatch(f"config: {line}", message(["report", *words.split()]))


@pytest.mark.parametrize("verb", ["report", "plan", "doctor", "remeasure", "--lint"])
def test_a_bad_config_is_one_line(project: Path, verb: str) -> None:
    (project / "config.yaml").write_text("sead: 1\n")
    assert message([verb]).startswith("config: sead: ")
    (project / "config.yaml").unlink()
    assert re.match(r"config: .*config\.yaml", message([verb]))


ELSE = "--config KEY=VALUE ... or nothing"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("plan --confg site=a", f"plan: got '--confg', expected an experiment, {ELSE}"),
        ("plan attentoin", f"plan: got 'attentoin', expected an experiment, {ELSE}; did you mean attention?"),
        ("doctor x --config seed=1", f"doctor: got 'x', expected {ELSE}"),
        ("report preset=tiny", "report: got 'preset=tiny', expected --config KEY=VALUE ... or options of Snakemake"),
        ("plann", "'plann' is no verb; did you mean plan? (./run help lists them)"),
        ("frobnicate", "'frobnicate' is no verb (./run help lists them)"),
    ],
)
def test_a_word_that_is_not_known_is_one_line(words: str, line: str) -> None:
    assert message(words.split()) == f"run: {line}"


@pytest.mark.parametrize("words", ["--configfile=pipe", "--configfiles ok pipe"])
def test_a_pipe_is_no_config(project: Path, words: str) -> None:
    os.mkfifo(project / "pipe")
    (project / "ok").write_text("seed: 1\n")
    assert "pipe: a pipe; expected a YAML file" in message(["report", *words.split()])


def test_the_tests_end_with_the_first_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    failing, advice, ran = "mypy", f"    * {min(cli.UNHEEDED)}:\n      Why.\n", []

    def run(command: list[str], **_: object) -> types.SimpleNamespace:
        ran.append(" ".join(command[2:]))
        return types.SimpleNamespace(returncode=3 if ran[-1] == failing else 0, stderr=advice)

    monkeypatch.setattr(cli.subprocess, "run", run)
    assert cli.main(["test"]) == 3 and ran[-1] == "mypy"
    failing = "snakemake --lint"
    assert cli.main(["test", "-k", "tables"]) == 0 and ran[-1].startswith("pytest ") and ran[-1].endswith(" -k tables")
    advice += "    * No log directive defined:\n"
    assert cli.main(["test"]) == 3 and ran[-1] == "snakemake --lint"


@pytest.mark.parametrize(
    ("told", "all_cores", "quiet"),
    [
        ("--config preset=tiny", True, True),
        ("-c4", False, True),
        ("-j 2", False, True),
        ("--profile=slurm", False, False),
        ("--executor=slurm -j4", False, False),
        ("-e slurm -j4", False, False),
    ],
)
def test_a_report_takes_all_cores_unless_told_and_is_quiet_on_one_machine(
    project: Path, monkeypatch: pytest.MonkeyPatch, told: str, all_cores: bool, quiet: bool
) -> None:
    """A cluster's refusals are Snakemake's to tell, however the cluster is named."""
    ran: list[list[str]] = []
    monkeypatch.setattr(cli, "Command", lambda words, cwd: types.SimpleNamespace(wait=lambda: ran.append(words)))
    cli.main(["report", *told.split()])
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "slurm")
    cli.main(["report", *told.split()])
    assert [("--cores" in words, "--quiet" in words) for words in ran] == [(all_cores, quiet), (all_cores, False)]


# --- in a checkout ----------------------------------------------------------------------------------------------


def run(space: Workspace, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """./run with these variables, from this folder."""
    env = {**space.environment(), "PYTHON": sys.executable, **variables}
    return subprocess.run([space.root / "run", *arguments], cwd=cwd, env=env, capture_output=True, text=True)


def test_a_report_then_nothing_to_do_from_any_folder(
    space: Workspace, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (space.root / "results").mkdir(exist_ok=True)
    scratch = tmp_path_factory.mktemp("scratch") / "purged"  # as where a home is small
    (space.root / "results" / "local").symlink_to(scratch)
    first = run(space, "--system", "report", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    cells = [f"probe n={n}: time_ms 1.5 ({n}/3)" for n in (1, 2, 3)]
    told = [*cells, "3/3 cells: 3 ok", "as HTML: report/local/report.html", "report: report/local/report.md"]
    assert re.sub(r"(?m)^[\d:]{8} |, \d+ s left", "", first.stderr).splitlines() == told and not first.stdout
    second = run(space, "--system", "report", cwd=Path("/"))
    assert (second.returncode, second.stdout) == (0, "nothing to do; report: report/local/report.md\n")
    assert "probe" not in second.stderr and not list(tmp_path.iterdir())
    page = space.root / "report" / "local" / "report.html"
    page.write_text("edited")
    looked = run(space, "--system", "report", "-n", cwd=tmp_path)
    assert "nothing to do" not in looked.stdout and "report.html differs from its checksum" in looked.stderr
    assert page.read_text() == "edited", "a dry run deletes nothing"


def test_a_file_is_named_from_where_run_was_called(space: Workspace, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("no table\n")
    told = run(space, "--system", "fill", "notes.md", cwd=tmp_path).stderr
    assert told == f"run: fill: {tmp_path / 'notes.md'}: there is no table in it\n"
    job = ["launch", "--scheduler", "slurm", "--nodes", "1", "--ranks-per-node", "1"]
    assert f"\ncd {tmp_path}\n" in run(space, "--system", *job, "--", "python", "train.py", cwd=tmp_path).stdout
    assert f"\ncd {shlex.quote(str(space.root))}\n" in run(space, "--system", *job, cwd=tmp_path).stdout


def test_a_reader_that_has_seen_enough_ends_it_quietly_and_a_full_disk_in_one_line() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "perfscribe.cli", "help"]
    for unbuffered in ("", "1"):
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=writer, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
    os.close(writer)
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "run: a file or standard output: No space left on device\n")
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.parametrize("words", [["sh", "{run}"], ["{link}"]])
def test_run_is_called_by_sh_or_a_link_whatever_variables_of_python_say(
    space: Workspace, tmp_path: Path, words: list[str]
) -> None:
    """PYTHONSAFEPATH hides the package, PYTHONINSPECT waits at a prompt."""
    link = tmp_path / "link"
    link.symlink_to(space.root / "run")
    command = [word.format(run=space.root / "run", link=link) for word in words]
    env = {**space.environment(), "PYTHON": sys.executable, "PYTHONSAFEPATH": "1", "PYTHONINSPECT": "1"}
    done = subprocess.run([*command, "--system", "help"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, cli.HELP, "")
    assert not (space.root / ".venv").exists()  # --system takes the Python at hand


def test_what_a_terminal_cannot_show_ends_no_verb() -> None:
    """A site's table has × and ±; in a locale without them they are escaped, as Python does on standard error."""
    command = [sys.executable, "-m", "perfscribe.cli", "chapter", "chapters/cs336/nsys_profile.md", "--site", "cpu2"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True)
    assert done.returncode == 0 and rb"\xb1" in done.stdout, done.stderr


def test_a_checkout_by_windows_git_keeps_its_line_ends(tmp_path: Path) -> None:
    made, taken = tmp_path / "made", tmp_path / "taken"
    made.mkdir()
    for name in (".gitattributes", "run"):
        shutil.copy(ROOT / name, made)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x", "-c", "core.autocrlf=true"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["clone", "-q", made, taken]):
        subprocess.run([*git, *words], cwd=made, check=True)
    assert (taken / "run").read_bytes() == (ROOT / "run").read_bytes()


def test_the_environment_is_not_another_pythons(tmp_path: Path) -> None:
    shutil.copy(ROOT / "run", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "${PYTHONHOME-none} ${PYTHONPATH-none} ${PYTHONOPTIMIZE-none} $HOME $USER"\n')
    python.chmod(0o755)
    for name in ("requirements.lock", "requirements-torch.txt", ".venv/installed"):
        (tmp_path / name).touch()
    of_modules = {"PYTHONHOME": "/opt/3.9", "PYTHONPATH": "/opt/3.9/packages", "PYTHONOPTIMIZE": "2"}
    env = {**os.environ, **of_modules, "USER": "", "HOME": str(tmp_path)}  # as in containers without an account
    said = subprocess.run([tmp_path / "run", "help"], env=env, stdout=subprocess.PIPE, text=True).stdout
    assert said == f"none none none {env['HOME']} uid{os.getuid()}\n"
    python.unlink()
    python.symlink_to("/opt/3.11/bin/python")  # of a module that is not loaded, or of a system before its upgrade
    done = subprocess.run([tmp_path / "run", "help"], capture_output=True, text=True)
    assert done.returncode == 1 and re.fullmatch(r"run: the Python that \.venv was made by is .*\n", done.stderr)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("results/local", "results/local: File exists"),
        (".snakemake", ".snakemake: File exists"),
        ("home", "home/.cache: Not a directory; XDG_CACHE_HOME may name another folder"),
    ],
)
def test_a_file_where_a_folder_should_be_is_one_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """It stops root too; what is read-only or full, as a container's home may be, is told by the same line."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(project / "home"))
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_text("")
    assert message(["report"]) == f"run: {project / line}"


def test_what_fails_without_a_word_is_told(tmp_path: Path) -> None:
    """A program that fails or leaves an empty log, as on a full disk, and what Snakemake keeps to itself."""
    space = Workspace(tmp_path / "root")
    space.only()
    checksums, script, rules = "results/local/checksums", "workflow/scripts/report.py", "rules/common.smk"
    files.write_text(space.root / checksums, "")
    kept = {name: (space.root / name).read_text() for name in (script, rules)}
    full, log = "    raise OSError(28, 'No space left on device', 'x')", r"log: logs/local/report\.log\n"
    for name, broken, told, code in (
        (checksums, "", rf"report: \S*{checksums}: File exists\n{log}", 1),
        (script, "import os\nos.kill(os.getpid(), 9)", rf".*\nit was killed, or the disk is full\n{log}", 1),
        (rules, kept[rules].replace("    SESSION.start()", full), r"run: .*No space left on device.*\n", 1),
        (rules, f"{kept[rules]}\nraise RuntimeError('odd')\n", r"run: .*odd.*\n", 1),
        (rules, f"{kept[rules]}\nraise KeyboardInterrupt\n", "", 128 + signal.SIGINT),  # Ctrl-C while it reads them
    ):
        (space.root / name).write_text(broken)
        done = space.run("report")
        assert done.returncode == code and re.fullmatch(told, done.stdout), done.stdout
        (space.root / name).write_text(kept[name]) if name in kept else (space.root / name).unlink()


def test_an_option_that_there_is_not_is_one_line(space: Workspace) -> None:
    done = space.run("report", "--confg", "x")
    assert (done.returncode, done.stdout) == (2, "run: unrecognized arguments: --confg x\n")


def test_a_folder_with_braces_or_a_colon_is_refused(tmp_path: Path) -> None:
    """Every other odd character is in the name of `space`."""
    space = Workspace(tmp_path / "odd:")
    done = space.run("report")
    assert done.returncode == 1 and done.stdout.startswith(f"run: {space.root}: Snakemake misreads braces"), done.stdout


def test_a_folder_that_a_clusters_jobs_cannot_be_given_is_refused(space: Workspace) -> None:
    done = space.run("--profile", "slurm", "report")
    told = done.stdout.splitlines()[-1]
    assert done.returncode == 1 and told.startswith(f"run: {str(space.root)!r}: jobs of a cluster would misread "), told


def test_plan_tells_cells(space: Workspace) -> None:
    told = space.run("plan", "probe", "--config", "site=other")
    assert told.returncode == 0 and told.stdout.count("to measure\n") == 3
    assert told.stdout.splitlines()[-1].startswith("site other, preset ")
    assert "n=1" not in space.run("plan", "--config", "site=other").stdout


# --- the environment --------------------------------------------------------------------------------------------


def test_system_says_what_is_missing_or_too_old(space: Workspace, tmp_path: Path) -> None:
    wanted = space.root / "requirements.in"
    kept = wanted.read_text()
    wanted.write_text("# A comment.\n\npackaging\npyyaml>=999\nno-such-package-here>=1\n")
    done = run(space, "--system", "help", cwd=tmp_path)
    wanted.write_text(kept)
    assert done.returncode == 1 and not done.stdout
    complaint = r"run --system: pyyaml is \S+, needed >=999; no-such-package-here is missing\n"
    assert re.fullmatch(complaint, done.stderr), done.stderr


def test_no_python_is_one_line(space: Workspace, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "cat", "cmp", "dirname", "env", "readlink"):
        (tools / name).symlink_to(str(shutil.which(name)))
    old = tools / "python3"
    old.write_text("#!/usr/bin/env bash\nexit 1\n")  # as one that is older than 3.11 answers
    old.chmod(0o755)
    for arguments in (["help"], ["--system", "help"]):
        done = run(space, *arguments, cwd=tmp_path, PATH=str(tools), PYTHON="")
        assert done.returncode == 1 and not done.stdout
        assert re.fullmatch(r"run: no Python 3\.11 or newer found .*\n", done.stderr), done.stderr


FAKE_PYTHON = """#!/usr/bin/env bash
if [ "$1" = -c ]; then exit 0; fi
echo "$@" >>{log}
if [ "$1" = perfscribe/bootstrap.py ]; then
    mkdir -p .venv/bin
    cp "$0" .venv/bin/python
    cat requirements.lock requirements-torch.txt >.venv/installed
fi
"""


def test_the_environment_is_made_once_and_again_for_new_pins(space: Workspace, tmp_path: Path) -> None:
    python, log = tmp_path / "python", tmp_path / "log"
    python.write_text(FAKE_PYTHON.format(log=log))
    python.chmod(0o755)
    install, verb = "perfscribe/bootstrap.py install .venv", "-m perfscribe.cli"
    pins = space.root / "requirements.lock"
    kept = pins.read_text()
    try:
        for arguments in (["plan"], ["report", "--config", "site=a b"]):
            assert run(space, *arguments, cwd=tmp_path, PYTHON=str(python)).returncode == 0
        pins.write_text(kept + "# new\n")
        assert run(space, cwd=tmp_path, PYTHON=str(python)).returncode == 0
    finally:
        pins.write_text(kept)
        shutil.rmtree(space.root / ".venv")
    calls = [install, f"{verb} plan", f"{verb} report --config site=a b", install, verb]
    assert [line.rstrip() for line in log.read_text().splitlines()] == calls


# Debian's Python without python3-venv is such a one.
WITHOUT_PIP = """import subprocess

def create(*_, **__):
    raise subprocess.CalledProcessError(1, "python -m ensurepip", b"no module named zlib")
"""


@pytest.mark.parametrize(
    ("file", "content", "line"),
    [
        ("perfscribe/venv.py", WITHOUT_PIP, r"run: Python's venv could not put pip into \.venv; see above"),
        (".perfscribe", "", r"run: the environment cannot be made in \S+: \[Errno \d+\] .*"),  # a folder elsewhere
    ],
)
def test_an_environment_that_cannot_be_made_is_one_line(tmp_path: Path, file: str, content: str, line: str) -> None:
    for name in ("requirements.lock", "requirements-torch.txt"):
        (tmp_path / name).touch()
    (tmp_path / "perfscribe").mkdir()
    shutil.copy(ROOT / "perfscribe" / "bootstrap.py", tmp_path / "perfscribe")
    (tmp_path / file).write_text(content)
    command = [sys.executable, "perfscribe/bootstrap.py", "install", ".venv"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and re.fullmatch(line, done.stderr.splitlines()[-1]), done.stderr


def test_only_what_the_lock_pins_is_installed_by_one_of_several_processes(tmp_path: Path) -> None:
    """The real pip, which refuses another file under a pinned name, without a network: this project's package,
    which the lock's setuptools installs, and two packages of one module."""
    folder, lock, other = tmp_path / ".venv", tmp_path / "requirements.lock", tmp_path / "requirements-torch.txt"
    wheels = {name: tmp_path / f"{name}-1.0-py3-none-any.whl" for name in ("demo", "later")}
    for name, path in wheels.items():
        info, needs = f"{name}-1.0.dist-info", "Requires-Dist: not-in-the-lock" if name == "demo" else ""
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{name}.py", "x = 1\n")
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    backend = metadata.distribution("setuptools")
    wheels["setuptools"] = tmp_path / f"setuptools-{backend.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheels["setuptools"], "w") as archive:
        for file in backend.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                archive.write(file.locate(), str(file))
    (tmp_path / "perfscribe").mkdir()
    for name in ("perfscribe/__init__.py", "perfscribe/bootstrap.py", "pyproject.toml", "requirements.in"):
        shutil.copy(ROOT / name, tmp_path / name)
    other.write_text(f"{wheels['later']}\n")
    command = [sys.executable, "perfscribe/bootstrap.py", "install", str(folder)]
    constraint = tmp_path / "constraint.txt"
    constraint.write_text("demo==2.0\nlater==2.0\n")
    # As a cluster's pip.conf has it, NVIDIA's images, and shells that keep packages in a folder of their own.
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_USER": "1", "PIP_CONSTRAINT": str(constraint)}
    env |= {name: str(tmp_path / name) for name in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")} | {"PIP_DRY_RUN": "1"}

    lock.write_text(f"{wheels['demo']} --hash=sha256:{'0' * 64}\n")
    failed = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    said = r"run: pip could not install -r \S+requirements\.lock; see above"
    assert failed.returncode == 1 and re.fullmatch(said, failed.stderr.splitlines()[-1]), failed.stderr
    assert "HASHES" in failed.stderr and not (folder / "installed").exists()

    digests = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheels["demo"], wheels["setuptools"])}
    lock.write_text("".join(f"{path} --hash=sha256:{digest}\n" for path, digest in digests.items()))
    running = [subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0] * 2, told
    assert sorted(map(bool, told)) == [False, True]
    assert (folder / "installed").read_bytes() == lock.read_bytes() + other.read_bytes()
    imported = "import demo, later, perfscribe; print(perfscribe.__file__)"
    done = subprocess.run(
        [folder / "bin" / "python", "-c", imported], cwd="/", check=True, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout == f"{tmp_path / 'perfscribe' / '__init__.py'}\n"
