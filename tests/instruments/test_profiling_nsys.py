"""nsys itself, and its exports: PERFSCRIBE_NSYS, else the machine's, else what a script next to the checkout unpacks.

nsys 2023.4, which that script unpacks, records no ranges of nvtx 0.2.12 and newer: PERFSCRIBE_TEST_NVTX names a folder
with an older nvtx.
"""

import contextlib
import csv
import io
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from nvtx_kernels import COLUMNS, nvtx_kernel_summary
from workspace import ROOT, Workspace

from perfscribe.instruments.profiling import nsys
from perfscribe.instruments.profiling.nsys_export import read_sqlite
from perfscribe.instruments.profiling.trace import Kernel, Range, Trace, process_and_thread, thread_key
from perfscribe.instruments.tools import NSYS_VARIABLE

UNPACKER = ROOT.parent / "shared" / "tools" / "nsys-debian"
TOOLS = ROOT / ".perfscribe" / "test-tools"
FOLDER = ROOT / "tests" / "fixtures" / "nsys"  # exports, with what nsys printed of each
PROGRAM = """
import os, sys, time
from perfscribe.instruments.profiling.ranges import FORWARD, STEP, annotate
for _ in range(2):
    with annotate(STEP):
        with annotate(FORWARD):
            time.sleep(0.01)
files = [os.environ.get(name, "") for name in ("QUADD_INJECTION_CONFIG", "QUADD_CUDA_CONFIG")]
print(*files, file=open(os.path.join(os.path.dirname(sys.argv[1]), "files"), "w"), flush=True)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(float(sys.argv[2]))
"""
CALLER = """
import sys
from pathlib import Path
from perfscribe.instruments.profiling import nsys
nsys.profile(nsys.find(), sys.argv[2:], Path(sys.argv[1]), 60)
"""


def unpacked() -> bool:
    """Whether nsys and nvtx lie in TOOLS; once a checkout, an attempt to put them there."""
    if UNPACKER.is_file() and not (TOOLS / "done").is_file():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(TOOLS / "nvtx"), "nvtx==0.2.11"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            TOOLS.mkdir(parents=True, exist_ok=True)
            for command in ([str(UNPACKER), str(TOOLS / "nsys")], pip):
                subprocess.run(command, check=True, capture_output=True, timeout=240)
            (TOOLS / "done").touch()
    return (TOOLS / "done").is_file()


@pytest.fixture
def tool(monkeypatch):
    """An nsys, which the code under test finds too. Programs find the project, and an nvtx that this nsys knows."""
    with contextlib.suppress(nsys.NsysError):
        nsys.find()
        return use_nvtx(monkeypatch)
    if not unpacked():
        pytest.skip("no nsys on this machine (PERFSCRIBE_NSYS may name one)")
    monkeypatch.setenv(NSYS_VARIABLE, str(TOOLS / "nsys" / "bin" / "nsys"))
    monkeypatch.setenv("PERFSCRIBE_TEST_NVTX", str(TOOLS / "nvtx"))
    return use_nvtx(monkeypatch)


def use_nvtx(monkeypatch):
    packages = [os.environ.get("PERFSCRIBE_TEST_NVTX"), str(ROOT), os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, packages)))
    return nsys.find()


@pytest.fixture
def command(tmp_path):
    """Marks ranges, writes its process number into the file `pid`, then sleeps as long as the last argument says."""
    return [sys.executable, "-c", PROGRAM, str(tmp_path / "pid")]


@pytest.fixture
def nothing_left(tmp_path, monkeypatch):
    """Neither processes nor temporary files of nsys are left behind."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("PERFSCRIBE_TEST_SESSION", str(scratch))

    def processes():
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get("PERFSCRIBE_TEST_SESSION") == str(scratch):
                    yield process.pid

    yield
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and (any(processes()) or any(scratch.iterdir())):
        time.sleep(0.1)
    assert not any(processes()) and not any(scratch.iterdir())
    assert not [path for path in (tmp_path / "files").read_text().split() if Path(path).exists()]


def test_ranges_are_recorded_and_exported(tool, tmp_path, command, nothing_left) -> None:
    report = nsys.profile(tool, [*command, "0"], tmp_path / "out" / "a.50%", 60)
    assert report == tmp_path / "out" / "a.50%.nsys-rep"
    export = nsys.export_sqlite(tool, report, tmp_path / "exported" / "a.sqlite")
    assert sorted(path.name for path in export.parent.iterdir()) == ["a.sqlite"]
    trace = read_sqlite(export)
    assert trace.tool == f"nsys {tool.version}" and trace.no_kernels == "no CUDA" and not trace.kernels
    if not trace.ranges:
        pytest.skip("this nsys does not record this nvtx package; PERFSCRIBE_TEST_NVTX may name another")
    assert [each.name for each in trace.ranges] == ["step", "forward"] * 2
    assert {process_and_thread(each.thread)[0] for each in trace.ranges} == {int((tmp_path / "pid").read_text())}
    assert all(each.duration_ns >= 10_000_000 for each in trace.ranges)


def test_a_program_that_takes_too_long_is_ended_and_one_that_fails_says_why(
    tool, tmp_path, command, nothing_left
) -> None:
    with pytest.raises(nsys.NsysError, match=r"nsys profile: longer than 3 s"):
        nsys.profile(tool, [*command, "60"], tmp_path / "late", 3)
    failing = [sys.executable, "-c", "raise SystemExit('CUDA out of memory')"]
    with pytest.raises(nsys.NsysError, match=r"^nsys profile: exit status 1: CUDA out of memory$"):
        nsys.profile(tool, failing, tmp_path / "out", 60)


def test_the_program_ends_with_whoever_asked_for_it(tool, tmp_path, command, nothing_left) -> None:
    process = subprocess.Popen([sys.executable, "-c", CALLER, str(tmp_path / "out"), *command, "60"])
    deadline = time.monotonic() + 30
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / "pid").exists()
    process.send_signal(signal.SIGKILL)
    process.wait()


def nsys_rows(text):
    """The rows that nsys printed below its header, without the colon of the default domain; other domains' last.

    That is the order of versions that print the colon; 2023.4 sorts all names together.
    """
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    rows = rows[rows.index(list(COLUMNS)) + 1 :]  # nsys prints lines of its own above the header
    plain = [(row[0].removeprefix(":"), *row[1:]) for row in rows]
    return sorted(plain, key=lambda row: ":" in row[0])


@pytest.mark.parametrize("export", sorted(FOLDER.glob("*.sqlite")), ids=lambda path: path.stem)
def test_the_summary_is_that_which_nsys_printed(export) -> None:
    printed = nsys_rows(export.with_suffix(".csv").read_text(encoding="utf-8"))
    assert printed == nvtx_kernel_summary(read_sqlite(export))


def test_nsys_summarises_an_export(tool, tmp_path) -> None:
    printed = (FOLDER / "synthetic.csv").read_text(encoding="utf-8")
    assert nsys_rows(nsys.kernel_summary(tool, Path(shutil.copy(SYNTHETIC, tmp_path)))) == nsys_rows(printed)


def test_a_trace_that_cannot_be_is_an_error() -> None:
    thread = thread_key(1, 1)
    kernel = Kernel("k", 0, 1, 0, 1, thread)
    ours, librarys = Range("step", 0, 9, thread), Range("ncclAllReduce", 0, 9, thread, domain="NCCL")
    nsys.check(Trace("nsys 2025.3.1", [kernel], [ours]), uses_cuda=True)
    nsys.check(Trace("nsys 2025.3.1", [], [ours], "no CUDA"), uses_cuda=False)
    with pytest.raises(nsys.NsysError, match=r"nsys 2023\.4\.4 holds no range .* nvtx 0\.2\.12 and newer"):
        nsys.check(Trace("nsys 2023.4.4", [kernel], [librarys]), uses_cuda=True)
    with pytest.raises(nsys.NsysError, match=r"no kernel of a program that used CUDA: .*; CUPTI said no"):
        nsys.check(Trace("nsys 2023.4.4", [], [ours], remarks=["CUPTI said no"]), uses_cuda=True)


def fake_nsys(folder, script):
    path = folder / "nsys"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 1", "nsys --version: exit status 1"),
        ("echo something else", "it tells no version"),
        ("exec /does/not/exist", "nsys --version: exit status 127: .*not found"),
    ],
)
def test_an_nsys_that_does_not_run_is_named_with_the_reason(tmp_path, monkeypatch, script, why) -> None:
    fake = fake_nsys(tmp_path, script)
    monkeypatch.setenv("PERFSCRIBE_NSYS", str(fake))
    with pytest.raises(nsys.NsysError, match=f"^{fake} does not run: {why}$"):
        nsys.find()
    fake.unlink()
    with pytest.raises(nsys.NsysError, match=f"tools.nsys: {fake} is no program"):
        nsys.find()


def test_an_nsys_too_old_for_an_option_says_so_and_not_its_usage(tmp_path) -> None:
    option = "echo \"unrecognised option '--cuda-graph-trace=node'\"; echo; echo usage: nsys profile '[<args>]'; exit 1"
    fake = fake_nsys(tmp_path, f'[ "$2" = --help ] || {{ {option}; }}')
    with pytest.raises(nsys.NsysError, match=r"exit status 1: unrecognised option '--cuda-graph-trace=node'$"):
        nsys.profile(nsys.Nsys(fake, "2021.3.2"), ["true"], tmp_path / "out", 60)


SYNTHETIC = FOLDER / "synthetic.sqlite"  # every case that counts
KNOWN = read_sqlite(SYNTHETIC)
KERNELS, *OTHER_WORK, CALLS = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME"))


@pytest.fixture
def altered(tmp_path):
    """Reads the committed export with these changes."""

    def read(*statements):
        path = Path(shutil.copyfile(SYNTHETIC, tmp_path / "altered #x?.sqlite"))
        with closing(sqlite3.connect(path)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()
        return read_sqlite(path)

    return read


def test_a_later_schema_reads_the_same(altered) -> None:
    later = altered(
        f"ALTER TABLE {KERNELS} ADD COLUMN greenContextId INTEGER",
        "ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData TEXT",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS SELECT 1 AS start",
        "CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT)",
        "INSERT INTO DIAGNOSTIC_EVENT VALUES (3, 'CUDA events were lost'), (1, 'CUDA is here'), (3, 'CUDA in /home/x')",
        "UPDATE META_DATA_EXPORT SET value = '2025.3.1.90' WHERE name = 'EXPORT_PRODUCT_VERSION'",
    )
    assert (later.tool, KNOWN.tool) == ("nsys 2025.3.1", "nsys 2023.4.4")
    assert later.kernels == KNOWN.kernels and later.ranges == KNOWN.ranges
    remarks = {"1 CUDA graphs traced as a whole, without their kernels", "CUDA events were lost"}
    assert set(later.remarks) - set(KNOWN.remarks) == remarks  # no information, no path of the machine


def test_tables_may_be_absent(altered) -> None:
    drops = [f"DROP TABLE {table}" for table in (KERNELS, *OTHER_WORK, CALLS)]
    host = altered(*drops)
    assert not host.kernels and host.no_kernels == "no CUDA" and len(host.ranges) == 21
    with pytest.raises(nsys.NsysError, match="no kernel of a program that used CUDA"):
        nsys.check(altered(drops[0]), uses_cuda=True)
    assert altered(*drops[:3]).no_kernels == "nsys 2023.4.4 recorded CUDA calls but no kernel"
    assert not altered(*drops, "DROP TABLE NVTX_EVENTS").ranges
    with pytest.raises(ValueError, match=r"no SQLite export of nsys"):
        altered(f"ALTER TABLE {KERNELS} DROP COLUMN streamId")


def test_what_ends_before_it_starts_is_left_out(altered) -> None:
    turned = altered(
        *(
            f"UPDATE {table} SET end = start - 1 WHERE rowid = (SELECT MIN(rowid) FROM {table} WHERE end IS NOT NULL)"
            for table in (KERNELS, "NVTX_EVENTS")
        )
    )
    assert (len(turned.kernels), len(turned.ranges)) == (len(KNOWN.kernels) - 1, len(KNOWN.ranges) - 1)
    assert "2 records that end before they start left out" in turned.remarks


def test_correlations_count_within_a_process(altered) -> None:
    """Another process counts from one, too."""
    again = [f"UPDATE {table} SET correlationId = 1 WHERE correlationId = 36" for table in (KERNELS, CALLS)]
    assert altered(*again).kernels == KNOWN.kernels


EXPORTS = "results/elsewhere/nsys"
# Its export of a report is the committed one, and none where the report is empty; its summary of that export is what
# nsys printed, and of another a line, as nsys succeeds there, too.
NSYS = f"""
for report; do :; done
case "$1" in --version) echo version 2023.4.4.54; exit ;; esac
if [ "$1" = stats ]; then
    cmp -s "$report" {SYNTHETIC} && cat {SYNTHETIC.with_suffix(".csv")} || echo ERROR: invalid
    exit 0
fi
for word in "$@"; do case $word in --output=*) out="${{word#--output=}}" ;; esac; done
[ -s "$report" ] && cp {SYNTHETIC} "$out"
"""


def test_reports_and_exports_become_summaries_and_what_fails_is_one_line(tmp_path) -> None:
    space = Workspace(tmp_path)
    space.only("mixed_precision_accumulation")
    folder = space.root / EXPORTS
    for made in (folder, space.root / "tools"):
        made.mkdir(parents=True)
    fake_nsys(space.root / "tools", NSYS)
    space.set_config((space.root / "config.yaml").read_text().replace("nsys: null ", "nsys: tools/nsys "))
    (folder / "a-1.x.nsys-rep").write_bytes(b"report")
    (folder / "b.nsys-rep").touch()
    (folder / "broken.sqlite").write_text("text")
    shutil.copyfile(SYNTHETIC, folder / "own.sqlite")
    names = ("a-1.x.kernels.csv", "own.kernels.csv", "broken.kernels.csv", "b.sqlite")
    done = space.run("--cores", "1", "--keep-going", *(f"{EXPORTS}/{name}" for name in names))
    assert done.returncode != 0 and "nsys_export: nsys export" in done.stdout, done.stdout
    assert "broken.sqlite: nsys 2023.4.4 makes no summary of it: ERROR: invalid" in done.stdout
    assert "Traceback" not in (space.root / "logs/elsewhere/nsys_kernels_broken.log").read_text()
    summaries = [folder / "a-1.x.kernels.csv", folder / "own.kernels.csv"]
    assert sorted(folder.glob("*.csv")) == summaries and (folder / "a-1.x.sqlite").exists()
    for path in summaries:
        rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        assert tuple(rows[0]) == COLUMNS and len(rows) == 20
