"""The front door: `./run`, its environment and its verbs."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import types
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from workspace import CHEAP, ROOT, Workspace

from perfscribe import cli

ENVIRONMENT_FILES = ("requirements.in", "requirements.lock", "requirements-torch.txt")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the command line takes for the checkout; config.yaml is the committed one."""
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    shutil.copy(ROOT / "config.yaml", tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A project with one light experiment and the files of its environment."""
    made = Workspace(tmp_path_factory.mktemp("cli"))
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


@pytest.mark.parametrize("arguments", [[], ["help"], ["-h"], ["--help"], ["help", "me"]])
def test_help_names_every_verb(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 0
    told = capsys.readouterr().out
    assert told == cli.HELP
    assert {line.split()[1] for line in told.splitlines() if line.startswith("./run ")} == {*cli.VERBS, "ANYTHING"}


@pytest.mark.parametrize(
    "arguments", [["--profile", "slurm", "report"], ["--lint"], ["--report", "a.zip"], ["some_rule", "-n"]]
)
def test_anything_else_goes_to_snakemake(project: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(project.parent)
    called: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *given: called.append((Path.cwd(), *given)))
    cli.main(arguments)
    assert called == [(project, sys.executable, [sys.executable, "-m", "snakemake", *arguments])]


@pytest.mark.parametrize(("more", "added"), [([], ["--cores", "all"]), (["-c2"], []), (["--profile", "slurm"], [])])
def test_a_file_is_made_on_all_cores(
    project: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], added: list[str]
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *given: called.append(given[1][3:]))
    monkeypatch.chdir(project.parent)
    for path in ("results/local/nsys/a.sqlite", "report/local/report.md"):
        cli.main([path, *more])
        assert called.pop() == [path, *more, *added]


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        ([], {}),
        (["--config", "site=h200", "preset=tiny"], {"site": "h200", "preset": "tiny"}),
        (["-C", "seed=3", "--cores", "2", "a=b"], {"seed": 3}),
        (["--config=seed=3", "--config", "budget_minutes=null"], {"seed": 3, "budget_minutes": None}),
        (["-n", "--config", "chapters=[cs336]", "-q"], {"chapters": ["cs336"]}),
        (["--config", "site={", "x=a=b"], {"site": "{", "x": "a=b"}),
        (["report", "site=h200"], {}),
    ],
)
def test_config_of_the_command_line(arguments: list[str], config: dict[str, Any]) -> None:
    assert cli.command_line_config(arguments) == config


@pytest.mark.parametrize("verb", ["report", "plan", "doctor", "--lint"])
@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("site={", r'config: site: got "{", expected text that matches .*'),
        ("site=Über", r'config: site: got "Über", expected .*'),
        ("preset=nope", r'config: preset: got "nope", expected one of auto, tiny, cpu, gpu'),
        ("seed=-1", r"config: seed: got -1, expected a whole number .*"),
        ("sites=x", r"config: sites: .*site.*"),
        ("site=notes", r'config: site: got "notes", expected a name that no folder of the project has'),
        ("seed=" + "9" * 6000, r"config: seed: got '9+' …, expected a shorter or flatter value"),
        ("experiments=" + "[" * 2000, r"config: experiments: got '\[+' …, expected a shorter or flatter value"),
    ],
)
def test_a_bad_setting_is_one_line(project: Path, verb: str, setting: str, line: str) -> None:
    assert re.fullmatch(line, message([verb, "--config", setting]))


@pytest.mark.parametrize("verb", ["report", "plan", "doctor", "remeasure", "--lint"])
@pytest.mark.parametrize("text", ["seed: [", "sead: 1\n", "- 1\n", "experiments: {attention: {passes: 0}}\n", ""])
def test_a_bad_config_is_one_line(project: Path, verb: str, text: str) -> None:
    (project / "config.yaml").write_text(text)
    if text:
        assert message([verb]).startswith("config: ")
    (project / "config.yaml").unlink()
    assert re.match(r"config: .*config\.yaml", message([verb]))


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--cores", "2"],
        ["doctor", "x", "--config", "seed=1"],
        ["plan", "preset=tiny"],
        ["report", "preset=tiny"],
    ],
)
def test_words_that_a_verb_does_not_know_are_refused(project: Path, words: list[str]) -> None:
    expected = rf"run: {words[0]}: got '\S+', expected --config KEY=VALUE \.\.\. or (nothing|options of Snakemake)"
    assert re.fullmatch(expected, message(words))


def test_plan_names_the_experiment_that_was_meant() -> None:
    expected = "expected an experiment, --config KEY=VALUE ... or nothing; did you mean attention?"
    assert message(["plan", "attentoin"]) == f"run: plan: got 'attentoin', {expected}"


@pytest.mark.parametrize("verb", ["plan", "doctor", "report"])
@pytest.mark.parametrize(
    ("words", "line"),
    [(["x"], "got 'x', expected KEY=VALUE"), (["--config", "seed=2"], "seed is given twice")],
)
def test_settings_that_are_none_or_two_are_one_line(project: Path, verb: str, words: list[str], line: str) -> None:
    assert message([verb, "--config", "seed=1", *words]) == f"config: --config: {line}"


@pytest.mark.parametrize("words", [["--configfile", "FIFO"], ["--configfile=FIFO"], ["--configfiles", "ok", "FIFO"]])
def test_a_pipe_is_no_config(project: Path, words: list[str]) -> None:
    os.mkfifo(project / "pipe")
    (project / "ok").write_text("seed: 1\n")
    named = [word.replace("FIFO", str(project / "pipe")).replace("ok", str(project / "ok")) for word in words]
    assert "pipe: a pipe; expected a YAML file" in message(["report", *named])
    (project / "ok").write_text("seed: 1\nseed: 2\n")
    assert "line 2: got no config (the key seed twice)" in message(["report", "--configfile", str(project / "ok")])
    (project / "config.yaml").unlink()
    os.mkfifo(project / "config.yaml")
    assert "config.yaml: a pipe" in message(["report"])


@pytest.mark.parametrize(("word", "verb"), [("plann", "plan"), ("reprot", "report"), ("tests", "test")])
def test_a_mistyped_verb_is_one_line(project: Path, word: str, verb: str) -> None:
    assert message([word]) == f"run: '{word}' is no verb; did you mean {verb}? (./run help lists them)"


def test_the_tests_end_with_the_first_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    failing = ["mypy"]

    def run(command: list[str], cwd: Path) -> types.SimpleNamespace:
        ran.append(command[2:])
        return types.SimpleNamespace(returncode=3 if command[2] in failing else 0)

    monkeypatch.setattr(cli.subprocess, "run", run)
    assert cli.main(["test"]) == 3
    assert [step[:2] for step in ran] == [["ruff", "check"], ["ruff", "format"], ["snakefmt", "--check"], ["mypy"]]
    failing.clear()
    assert cli.main(["test", "-k", "tables"]) == 0
    assert ran[-2] == ["snakemake", "--lint"] and ran[-1][0] == "pytest" and ran[-1][-2:] == ["-k", "tables"]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ([], ["--cores", "all"]),
        (["--config", "preset=tiny"], ["--cores", "all"]),
        (["-c4"], []),
        (["--cores", "2"], []),
        (["-j", "2"], []),
        (["--profile", "slurm"], []),
        (["--profile=slurm"], []),
    ],
)
def test_a_report_takes_all_cores_unless_told(
    project: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], given: list[str]
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(cli.Command, "wait", lambda command: 7)
    monkeypatch.setattr(cli.Command, "__init__", lambda command, words, cwd: ran.append(words))
    assert cli.main(["report", *arguments]) == 7
    assert ran[0][:4] == [sys.executable, "-m", "perfscribe.run.engine", "report"]
    assert ran[0][4 : 4 + len(given)] == given and ran[0][-len(arguments) or len(ran[0]) :] == arguments
    assert ran[0].count("--cores") + ran[0].count("-c4") + ran[0].count("-j") <= 1 and "--nolock" in ran[0]


# --- in a checkout ----------------------------------------------------------------------------------------------


def run(space: Workspace, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """./run with these variables, from this folder."""
    env = {**space.environment(), "PYTHON": sys.executable, **variables}
    return subprocess.run([space.root / "run", *arguments], cwd=cwd, env=env, capture_output=True, text=True)


def test_a_report_then_nothing_to_do_from_any_folder(space: Workspace, tmp_path: Path) -> None:
    first = run(space, "--system", "report", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stderr.splitlines()[-1] == "report: report/local/report.md" and not first.stdout
    assert len([line for line in first.stderr.splitlines() if re.search(r"probe n=\d: time_ms 1\.5 \(\d/3", line)]) == 3
    second = run(space, "--system", "report", cwd=Path("/"))
    assert (second.returncode, second.stdout) == (0, "nothing to do; report: report/local/report.md\n")
    assert "probe" not in second.stderr and not list(tmp_path.iterdir())
    assert "nothing to do" not in run(space, "--system", "report", "-n", cwd=tmp_path).stdout


def test_a_file_is_named_from_where_run_was_called(space: Workspace, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("no table\n")
    told = run(space, "--system", "fill", "notes.md", cwd=tmp_path).stderr
    assert told == f"run: fill: {tmp_path / 'notes.md'}: there is no table in it\n"
    (space.root / "own.md").write_text("no table\n")
    told = run(space, "--system", "fill", "own.md", cwd=space.root).stderr
    assert told == "run: fill: own.md: there is no table in it\n"
    (space.root / "own.md").unlink()


def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "perfscribe.cli", "help"]
    for unbuffered in ("", "1"):
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=writer, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
    os.close(writer)


def test_an_output_that_takes_nothing_is_one_line() -> None:
    command = [sys.executable, "-m", "perfscribe.cli", "help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "run: a file or standard output: No space left on device\n")
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_run_is_called_by_a_link(space: Workspace, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(space.root / "run")
    env = {**space.environment(), "PYTHON": sys.executable}
    done = subprocess.run([tmp_path / "link", "--system", "help"], cwd="/", env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, cli.HELP, "")
    assert not (space.root / ".venv").exists()  # --system takes the Python at hand


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("results/local", r"run: .*/results/local: File exists"),
        ("report/local", r"run: .*/report/local: File exists"),
        ("logs", r"run: .*/logs: File exists"),
        (".snakemake", r"run: .*/\.snakemake: File exists"),
        (".perfscribe", r"run: .*/\.perfscribe: File exists"),
        ("results/local/plan", r"run: \S*results/local/plan\S*: (Not a directory|File exists)"),
        ("results/local/checksums", r"report: \S*results/local/checksums: File exists\nlog: logs/local/report.log"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, name: str, line: str) -> None:
    """A file where a folder should be, which stops root too; what is read-only or full is told by the same lines."""
    space = Workspace(tmp_path / "root")
    space.only()
    shutil.rmtree(space.root / ".perfscribe", ignore_errors=True)
    (space.root / name).parent.mkdir(parents=True, exist_ok=True)
    (space.root / name).write_text("")
    done = space.run("report")
    assert done.returncode == 1 and re.fullmatch(line + "\n", done.stdout), done.stdout


@pytest.mark.parametrize("raised", ["OSError(28, 'No space left on device', 'x')", "RuntimeError('odd')"])
@pytest.mark.parametrize("where", ["rules/common.smk", "onstart"])
def test_what_snakemake_keeps_to_itself_is_told(tmp_path: Path, raised: str, where: str) -> None:
    space = Workspace(tmp_path / "root")
    space.only()
    rules = space.root / "rules" / "common.smk"
    if where == "onstart":
        rules.write_text(rules.read_text().replace("    SESSION.start()", f"    raise {raised}"))
    else:
        rules.write_text(f"{rules.read_text()}\nraise {raised}\n")
    done = space.run("report")
    assert done.returncode == 1 and re.fullmatch(r"run: .*(No space left on device|odd).*\n", done.stdout), done.stdout


def test_a_folder_with_braces_is_refused(tmp_path: Path) -> None:
    """Other odd names are among the trials of bench/faults.py."""
    space = Workspace(tmp_path / "{odd}")
    done = space.run("report")
    assert done.returncode == 1 and done.stdout.startswith(f"run: {space.root}: Snakemake takes braces"), done.stdout


def test_plan_tells_cells_and_refuses_what_it_does_not_know(space: Workspace) -> None:
    told = space.run("plan", "probe", "--config", "site=other")
    assert told.returncode == 0 and told.stdout.count("to measure\n") == 3
    assert told.stdout.splitlines()[-1].startswith("site other, preset ")
    assert "n=1" not in space.run("plan", "--config", "site=other").stdout
    wrong = space.run("plan", "--confg", "site=other")
    assert wrong.returncode == 1 and len(wrong.stdout.splitlines()) == 1 and "--confg" in wrong.stdout


# --- the environment --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requirement", "complaint"),
    [
        ("pyyaml>=999", r"pyyaml is \S+, needed >=999"),
        ("no-such-package-here>=1", "no-such-package-here is missing"),
        ("pyyaml<1\nno-such-package-here", r"pyyaml is \S+, needed <1; no-such-package-here is missing"),
    ],
)
def test_system_says_what_is_missing_or_too_old(
    space: Workspace, tmp_path: Path, requirement: str, complaint: str
) -> None:
    wanted = space.root / "requirements.in"
    kept = wanted.read_text()
    wanted.write_text(f"# A comment.\n\npackaging\n{requirement}\n")
    try:
        done = run(space, "--system", "help", cwd=tmp_path)
    finally:
        wanted.write_text(kept)
    assert done.returncode == 1 and not done.stdout
    assert re.fullmatch(rf"run --system: {complaint}\n", done.stderr), done.stderr


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
    assert [line.rstrip() for line in log.read_text().splitlines()] == [
        install,
        f"{verb} plan",
        f"{verb} report --config site=a b",
        install,
        verb,
    ]


@pytest.fixture
def bootstrap(tmp_path: Path) -> types.ModuleType:
    """bootstrap.py of a checkout of its own."""
    (tmp_path / "perfscribe").mkdir()
    path = shutil.copy(ROOT / "perfscribe" / "bootstrap.py", tmp_path / "perfscribe")
    (tmp_path / "requirements.lock").write_text("")
    (tmp_path / "requirements-torch.txt").write_text("")
    spec = importlib.util.spec_from_file_location("bootstrap_of_a_test", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Installs with a pip and a venv that only write what they were asked for.
FAKE_INSTALL = """import importlib.util, os, sys, time
from pathlib import Path

spec = importlib.util.spec_from_file_location("bootstrap", sys.argv[1])
bootstrap = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bootstrap)


def pip(folder, *arguments):
    with open(sys.argv[2], "a") as log:
        log.write(f"{os.getpid()} pip {' '.join(arguments)}\\n")
    time.sleep(0.3)
    if len(sys.argv) > 3:
        sys.exit(sys.argv[3])


def create(folder, with_pip):
    assert with_pip and not folder.exists()
    folder.mkdir()


bootstrap.pip, bootstrap.venv.create = pip, create
bootstrap.install(Path(".venv"))
"""


def test_one_of_several_processes_makes_the_environment(bootstrap: types.ModuleType, tmp_path: Path) -> None:
    script, log = tmp_path / "install.py", tmp_path / "log"
    script.write_text(FAKE_INSTALL)
    (tmp_path / "requirements.lock").write_text("pinned==1\n")
    command = [sys.executable, str(script), str(bootstrap.__file__), str(log)]

    failed = subprocess.run([*command, "no network"], cwd=tmp_path, capture_output=True, text=True)
    assert failed.returncode == 1 and failed.stderr.splitlines()[-1] == "no network"
    assert not (tmp_path / ".venv" / "installed").exists()  # so that the next run begins anew
    log.unlink()

    running = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    told = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert sorted(map(bool, told)) == [False, False, False, True]
    calls = [line.split(" ", 2) for line in log.read_text().splitlines()]
    assert len({pid for pid, _, _ in calls}) == 1
    assert [arguments for _, _, arguments in calls] == [
        f"--quiet --no-deps --require-hashes -r {tmp_path / 'requirements.lock'}",
        f"--quiet -r {tmp_path / 'requirements-torch.txt'}",
    ]
    assert (tmp_path / ".venv" / "installed").read_text() == "pinned==1\n"


def wheel(folder: Path) -> Path:
    """A package of one module, to be had without a network."""
    path = folder / "demo-1.0-py3-none-any.whl"
    info = "demo-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("demo.py", "x = 1\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        tags = "Generator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\n{tags}")
        archive.writestr(f"{info}/RECORD", f"demo.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


def test_only_what_the_lock_pins_is_installed(
    bootstrap: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real pip, which refuses another file under a pinned name."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    path, folder, lock = wheel(tmp_path), tmp_path / ".venv", tmp_path / "requirements.lock"
    lock.write_text(f"{path} --hash=sha256:{'0' * 64}\n")
    with pytest.raises(SystemExit, match=r"^run: pip could not install -r \S+requirements\.lock; see above$"):
        bootstrap.install(folder)
    assert "HASHES" in capsys.readouterr().err and not (folder / "installed").exists()

    lock.write_text(f"{path} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n")
    bootstrap.install(folder)
    assert (folder / "installed").read_bytes() == lock.read_bytes()
    python = folder / "bin" / "python"
    assert subprocess.run([python, "-c", "import demo; print(demo.x)"], capture_output=True, text=True).stdout == "1\n"


def test_bootstrap_tells_its_use(bootstrap: types.ModuleType) -> None:
    command = [sys.executable, str(bootstrap.__file__)]
    for arguments in ([], ["install"], ["remove", "x"], ["check", "x"]):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        assert done.returncode == 1 and "bootstrap.py install FOLDER" in done.stderr
