"""nsys itself: the machine's own, else one that a script beside the checkout unpacks, once a checkout.

nsys 2023.4, which that script unpacks, records no ranges of nvtx 0.2.12 and newer: an older nvtx is put beside it.
PERFSCRIBE_NSYS names another nsys, PERFSCRIBE_TEST_NVTX a folder with another nvtx.
"""

import contextlib
import csv
import fcntl
import io
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from nvtx_kernels import COLUMNS, nvtx_kernel_summary

from perfscribe.instruments.profiling import nsys
from perfscribe.instruments.profiling.nsys_export import read_sqlite
from perfscribe.instruments.profiling.trace import Kernel, Range, Trace, process_and_thread, thread_key
from perfscribe.instruments.tools import NSYS_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
UNPACKER = ROOT.parent / "shared" / "tools" / "nsys-debian"
TOOLS = ROOT / ".perfscribe" / "test-tools"
NVTX_VARIABLE = "PERFSCRIBE_TEST_NVTX"
FOLDER = ROOT / "tests" / "fixtures" / "nsys"  # exports, beside each what nsys printed
PROGRAM = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from perfscribe.instruments.profiling.ranges import FORWARD, STEP, annotate
for _ in range(2):
    with annotate(STEP):
        with annotate(FORWARD):
            time.sleep(0.01)
files = [os.environ.get(name, "") for name in ("QUADD_INJECTION_CONFIG", "QUADD_CUDA_CONFIG")]
print(*files, file=open(os.path.join(os.path.dirname(sys.argv[2]), "files"), "w"), flush=True)
open(sys.argv[2], "w").write(str(os.getpid()))
time.sleep(float(sys.argv[3]))
"""


def unpacked() -> bool:
    """Whether nsys and nvtx lie in TOOLS, after an attempt to put them there."""
    if not UNPACKER.is_file():
        return False
    TOOLS.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(TOOLS / "nvtx"), "nvtx==0.2.11"]
    with open(TOOLS / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (TOOLS / "done").is_file():
            try:
                for command in ([str(UNPACKER), str(TOOLS / "nsys")], pip):
                    subprocess.run(command, check=True, capture_output=True, timeout=240)
            except (OSError, subprocess.SubprocessError):
                return False
            (TOOLS / "done").touch()
    return True


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> nsys.Nsys:
    """An nsys, which the code under test finds too. Programs find the project, and an nvtx that this nsys knows."""
    there = None
    with contextlib.suppress(nsys.NsysError):
        there = nsys.find()
    if there is None and unpacked():
        monkeypatch.setenv(NSYS_VARIABLE, str(TOOLS / "nsys" / "bin" / "nsys"))
        monkeypatch.setenv(NVTX_VARIABLE, str(TOOLS / "nvtx"))
        there = nsys.find()
    if there is None:
        pytest.skip(f"no nsys on this machine ({NSYS_VARIABLE} may name one)")
    packages = [os.environ.get(NVTX_VARIABLE), str(ROOT), os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, packages)))
    return there


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Marks ranges, writes its process number into the file `pid`, then sleeps as long as the last argument says."""
    return [sys.executable, "-c", PROGRAM, str(ROOT), str(tmp_path / "pid")]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of this test's own, which also tells its processes from those of others."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("PERFSCRIBE_TEST_SESSION", str(folder))
    return folder


@contextlib.contextmanager
def nothing_left(scratch: Path) -> Iterator[None]:
    """Neither processes nor temporary files of nsys are left behind."""

    def processes() -> list[int]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get("PERFSCRIBE_TEST_SESSION") == str(scratch):
                    found.append(process.pid)
        return found

    yield
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and (processes() or any(scratch.iterdir())):
        time.sleep(0.1)
    assert not processes() and not list(scratch.iterdir())
    told = scratch.parent / "files"
    assert not [path for path in told.read_text().split() if Path(path).exists()]


def test_ranges_are_recorded_and_exported(found: nsys.Nsys, tmp_path: Path, scratch: Path, command: list[str]) -> None:
    with nothing_left(scratch):
        report = nsys.profile(found, [*command, "0"], tmp_path / "out" / "a.50%", 60)
        assert report == tmp_path / "out" / "a.50%.nsys-rep"
        export = nsys.export_sqlite(found, report, tmp_path / "exported" / "a.sqlite")
    assert sorted(path.name for path in export.parent.iterdir()) == ["a.sqlite"]
    trace = read_sqlite(export)
    assert trace.tool == f"nsys {found.version}" and trace.no_kernels == "no CUDA" and not trace.kernels
    if not trace.ranges:
        pytest.skip("this nsys does not record this nvtx package; PERFSCRIBE_TEST_NVTX may name another")
    assert [one.name for one in trace.ranges] == ["step", "forward"] * 2
    assert {process_and_thread(one.thread)[0] for one in trace.ranges} == {int((tmp_path / "pid").read_text())}
    assert all(one.duration_ns >= 10_000_000 for one in trace.ranges)
    nsys.check(trace, uses_cuda=False)


def test_a_program_that_takes_too_long_is_ended_and_one_that_fails_says_why(
    found: nsys.Nsys, tmp_path: Path, scratch: Path, command: list[str]
) -> None:
    with nothing_left(scratch), pytest.raises(nsys.NsysError, match=r"nsys profile: longer than 3 s"):
        nsys.profile(found, [*command, "60"], tmp_path / "late", 3)
    failing = [sys.executable, "-c", "raise SystemExit('CUDA out of memory')"]
    with pytest.raises(nsys.NsysError, match=r"^nsys profile: exit status 1: CUDA out of memory$"):
        nsys.profile(found, failing, tmp_path / "out", 60)


def test_the_program_ends_with_whoever_asked_for_it(
    found: nsys.Nsys, tmp_path: Path, scratch: Path, command: list[str]
) -> None:
    caller = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from perfscribe.instruments.profiling import nsys\n"
        "nsys.profile(nsys.find(), sys.argv[3:], Path(sys.argv[2]), 60)\n"
    )
    with nothing_left(scratch):
        words = [sys.executable, "-c", caller, str(ROOT), str(tmp_path / "out"), *command, "60"]
        process = subprocess.Popen(words)
        deadline = time.monotonic() + 30
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (tmp_path / "pid").exists()
        process.send_signal(signal.SIGKILL)
        process.wait()


def nsys_rows(text: str) -> list[tuple[str, ...]]:
    """The rows that nsys printed below its header, without the colon of the default domain; other domains' last.

    That is the order of versions that print the colon; 2023.4 sorts all names together.
    """
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    rows = rows[rows.index(list(COLUMNS)) + 1 :]  # nsys prints lines of its own above the header
    plain = [(row[0].removeprefix(":"), *row[1:]) for row in rows]
    return sorted(plain, key=lambda row: ":" in row[0])


@pytest.mark.parametrize("export", sorted(FOLDER.glob("*.sqlite")), ids=lambda path: path.stem)
def test_the_summary_is_that_which_nsys_printed(export: Path) -> None:
    printed = nsys_rows(export.with_suffix(".csv").read_text(encoding="utf-8"))
    assert printed == list(nvtx_kernel_summary(read_sqlite(export)).itertuples(index=False, name=None))


def test_nsys_summarises_an_export(found: nsys.Nsys, tmp_path: Path) -> None:
    export = Path(shutil.copy(FOLDER / "synthetic.sqlite", tmp_path))
    printed = (FOLDER / "synthetic.csv").read_text(encoding="utf-8")
    assert nsys_rows(nsys.kernel_summary(found, export)) == nsys_rows(printed)


def test_a_trace_that_cannot_be_is_an_error() -> None:
    thread = thread_key(1, 1)
    kernel = Kernel("k", 0, 1, 0, 1, thread)
    ours, librarys = Range("step", 0, 9, thread), Range("ncclAllReduce", 0, 9, thread, domain="NCCL")
    nsys.check(Trace("nsys 2025.3.1", [kernel], [ours]), uses_cuda=True)
    nsys.check(Trace("nsys 2025.3.1", [], [ours], "no CUDA"), uses_cuda=False)
    for ranges in ([], [librarys]):
        with pytest.raises(nsys.NsysError, match=r"nsys 2023\.4\.4 holds no range .* nvtx 0\.2\.12 and newer"):
            nsys.check(Trace("nsys 2023.4.4", [kernel], ranges), uses_cuda=True)
    with pytest.raises(nsys.NsysError, match=r"no kernel of a program that used CUDA: .*; CUPTI said no"):
        nsys.check(Trace("nsys 2023.4.4", [], [ours], remarks=["CUPTI said no"]), uses_cuda=True)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 1", "nsys --version: exit status 1"),
        ("echo something else", "it tells no version"),
        ("exec /does/not/exist", "nsys --version: exit status 127: .*not found"),
        ("echo libx.so: cannot open shared object file; exit 127", ".*127: libx.so: cannot open shared object file"),
    ],
)
def test_an_nsys_that_does_not_run_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    fake = tmp_path / "nsys"
    monkeypatch.setenv("PERFSCRIBE_NSYS", str(fake))
    with pytest.raises(nsys.NsysError, match=f"tools.nsys: {fake} is no program"):
        nsys.find()
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    with pytest.raises(nsys.NsysError, match=f"^{fake} does not run: {why}$"):
        nsys.find()


def test_an_nsys_too_old_for_an_option_says_so_and_not_its_usage(tmp_path: Path) -> None:
    fake = tmp_path / "nsys"
    option = "echo \"unrecognised option '--cuda-graph-trace=node'\"; echo; echo usage: nsys profile '[<args>]'; exit 1"
    fake.write_text(f'#!/bin/sh\n[ "$2" = --help ] || {{ {option}; }}\n')
    fake.chmod(0o755)
    with pytest.raises(nsys.NsysError, match=r"exit status 1: unrecognised option '--cuda-graph-trace=node'$"):
        nsys.profile(nsys.Nsys(fake, "2021.3.2"), ["true"], tmp_path / "out", 60)


SYNTHETIC = FOLDER / "synthetic.sqlite"  # every case that counts
CUDA_TABLES = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME")]


def export(path: Path, *statements: str) -> Path:
    """The committed export, with these changes."""
    shutil.copyfile(SYNTHETIC, path)
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


def test_a_later_schema_reads_the_same(tmp_path: Path) -> None:
    later = export(
        tmp_path / "later #x?.sqlite",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN greenContextId INTEGER",
        "ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData TEXT",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS SELECT 1 AS start",
        "CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT)",
        "INSERT INTO DIAGNOSTIC_EVENT VALUES (3, 'CUDA events were lost'), (1, 'CUDA is here'), (3, 'CUDA in /home/x')",
        "UPDATE META_DATA_EXPORT SET value = '2025.3.1.90' WHERE name = 'EXPORT_PRODUCT_VERSION'",
    )
    found, known = read_sqlite(later), read_sqlite(SYNTHETIC)
    assert (found.tool, known.tool) == ("nsys 2025.3.1", "nsys 2023.4.4")
    assert found.kernels == known.kernels and found.ranges == known.ranges
    # no information, no path of the machine
    assert set(found.remarks) - set(known.remarks) == {
        "1 CUDA graphs traced as a whole, without their kernels",
        "CUDA events were lost",
    }


def test_tables_may_be_absent(tmp_path: Path) -> None:
    drops = [f"DROP TABLE {table}" for table in CUDA_TABLES]
    host = read_sqlite(export(tmp_path / "host.sqlite", *drops))
    assert not host.kernels and host.no_kernels == "no CUDA" and len(host.ranges) == 21
    copies = read_sqlite(export(tmp_path / "copies.sqlite", drops[0]))
    with pytest.raises(nsys.NsysError, match="no kernel of a program that used CUDA"):
        nsys.check(copies, uses_cuda=True)
    calls = read_sqlite(export(tmp_path / "calls.sqlite", *drops[:3]))
    assert calls.no_kernels == "nsys 2023.4.4 recorded CUDA calls but no kernel"
    bare = read_sqlite(export(tmp_path / "bare.sqlite", *drops, "DROP TABLE NVTX_EVENTS"))
    assert not bare.kernels and not bare.ranges


def test_what_ends_before_it_starts_is_left_out(tmp_path: Path) -> None:
    known = read_sqlite(SYNTHETIC)
    turned = [
        f"UPDATE {table} SET end = start - 1 WHERE rowid = (SELECT MIN(rowid) FROM {table} WHERE end IS NOT NULL)"
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS")
    ]
    found = read_sqlite(export(tmp_path / "turned.sqlite", *turned))
    assert (len(found.kernels), len(found.ranges)) == (len(known.kernels) - 1, len(known.ranges) - 1)
    assert "2 records that end before they start left out" in found.remarks
    assert all(one.duration_ns >= 0 for one in (*found.kernels, *found.ranges))


def test_correlations_count_within_a_process(tmp_path: Path) -> None:
    """Another process counts from one, too."""
    tables = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME")
    again = [f"UPDATE {table} SET correlationId = 1 WHERE correlationId = 36" for table in tables]
    assert read_sqlite(export(tmp_path / "two.sqlite", *again)).kernels == read_sqlite(SYNTHETIC).kernels


def test_an_export_that_lacks_a_column_is_refused(tmp_path: Path) -> None:
    missing = export(tmp_path / "columns.sqlite", "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN streamId")
    with pytest.raises(ValueError, match=r"no SQLite export of nsys"):
        read_sqlite(missing)
