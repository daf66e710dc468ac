"""Progress: finished cells, read from the journals, with what is left: lines, or a live line on a terminal."""

import io
import os
import pty
import re
import subprocess
import termios
from dataclasses import replace
from pathlib import Path

import pytest
from planned_site import CODE, cell, journal_file, keep, planned, record
from workspace import CHEAP, Workspace

from perfscribe.base import files
from perfscribe.base.cells import Cell
from perfscribe.plan import plan
from perfscribe.plan.plan_cells import cell_key
from perfscribe.records import journal
from perfscribe.run import estimate, processes, progress
from perfscribe.verbs import overview


def watch(root: Path) -> tuple[progress.Watcher, io.StringIO]:
    """Watch cells 1 to 4 and one that is skipped."""
    made, out = planned(root, [*map(cell, (1, 2, 3, 4)), cell(0, skip="preset tiny")]), io.StringIO()
    return progress.Watcher(root, made, out), out


def lines(out: io.StringIO) -> list[str]:
    """Printed lines without the time of day."""
    told = out.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d \S", line) for line in told)
    return [line[9:] for line in told]


def test_every_finished_cell_is_told_with_what_is_left(tmp_path: Path) -> None:
    watcher, out = watch(tmp_path)
    assert (watcher.total, len(watcher.left), watcher.seconds_left()) == (4, 4, None)
    failed = record(4, "failed", wall_s=1.0)
    keep(tmp_path, record(1, wall_s=10.0), record(2, "oom", wall_s=20.0), record(3, wall_s=30.0), failed)
    watcher.stop()
    # The quickest took 10 s, which each of the others may take too; what came on top of that goes by cost:
    # nothing, then 10 s for a cost of 3, then 30 s for a cost of 6. The job's start takes 5 s.
    assert lines(out) == [
        "probe n=1: time_ms 2 (1/4, 35 s left)",
        "probe n=2: oom why (2/4, 48 s left)",
        "probe n=3: time_ms 2 (3/4, 35 s left)",
        "probe n=4: failed why (4/4)",
        "4/4 cells: 2 ok, 1 oom, 1 failed",
        "failed: 1 of probe; to measure again: ./run remeasure probe status=failed, then ./run report",
    ]


def of_kind(n: int, implementation: str) -> dict[str, object]:
    return {"n": n, "implementation": implementation}


def left_s(root: Path, levels: list[tuple[int, str]], *measured: dict) -> float | None:
    """Expected time of what is left of cells (n, implementation) beside the job's start, after these records."""
    made = planned(root, [Cell(of_kind(*each), cost=each[0]) for each in levels])
    watcher = progress.Watcher(root, made, io.StringIO())
    keep(root, *measured)
    watcher._tell()
    seconds = watcher.seconds_left()
    return None if seconds is None else seconds - estimate.START_S


def test_what_is_left_takes_as_long_as_cells_of_its_kind(tmp_path: Path) -> None:
    levels = [*((n, "flash") for n in (1, 2)), *((n, "eager") for n in range(1, 61))]
    compiled = {"warmup_s": 0.0, "timed_s": 0.0, "compile_s": 119.0, "wall_s": 120.0}
    flash = record(factors=of_kind(1, "flash"), spent=compiled)
    eager = record(factors=of_kind(1, "eager"), wall_s=1.0)
    # The second flash cell is expected to compile too; that of its kind says nothing of the 59 others.
    assert left_s(tmp_path, levels, flash, eager) == pytest.approx(120.0 + 59.0)
    # As far as it goes: of three flash cells one compiled.
    again = [record(factors=of_kind(n, "flash"), wall_s=1.0) for n in (2, 3)]
    more = [(n, "flash") for n in range(1, 13)]
    assert left_s(tmp_path, more, flash, *again) == pytest.approx(9 * (1.0 + 119.0 / 3))


def publish(root: Path, site: str, preset: str, *measured: dict) -> None:
    """A committed site with these records."""
    keep(root, *measured, site=site)
    files.write_json(root / "results" / site / "published.json", {})
    files.write_json(root / "results" / site / "plan" / "index.json", {"preset": preset})


def test_what_was_never_measured_here_is_expected_as_on_a_committed_site_times_the_ratio(tmp_path: Path) -> None:
    seconds = {1: 60.0, 2: 3.0, 3: 30.0}
    publish(tmp_path, "like", "tiny", *(record(factors=of_kind(n, "flash"), wall_s=s) for n, s in seconds.items()))
    publish(tmp_path, "other", "gpu", *(record(factors=of_kind(n, "flash"), wall_s=1.0) for n in seconds))
    levels = [(n, "flash") for n in (1, 2, 3)]
    assert left_s(tmp_path, levels) == pytest.approx(93.0)  # before the first cell
    # Twice as slow in a cell of 60 s: (120 + 30) / (60 + 30) as a ratio, as it may be the first cell's start alone.
    first = record(factors=of_kind(1, "flash"), wall_s=120.0)
    assert left_s(tmp_path, levels, first) == pytest.approx(33.0 * 150 / 90)


def test_what_this_machine_cannot_run_takes_no_time(tmp_path: Path) -> None:
    made = planned(tmp_path, [cell(1), cell(2, requires=("cuda:99",))])
    keep(tmp_path, record(1, wall_s=7.0, fingerprint="0" * 16), record(2, wall_s=900.0, fingerprint="0" * 16))
    assert progress.Watcher(tmp_path, made, io.StringIO()).seconds_left() == 7.0 + estimate.START_S


# A cause is told once, though the numbers in it differ.
FAILS = """    if cell["n"] > 3:
        raise ValueError("out of shelves" if cell["n"] == 8 else f"no kernel for {cell['n']} threads")
"""
FAILING = CHEAP.replace("    return M", f"{FAILS}    return M")
COLUMNS = 60


def on_terminal(space: Workspace, *arguments: str) -> str:
    """Lines that a verb writes to a terminal."""
    terminal, side = pty.openpty()
    termios.tcsetwinsize(side, (24, COLUMNS))
    variables = {**space.environment(), "TERM": "xterm", "NO_COLOR": "1"}
    streams = {"stdin": subprocess.DEVNULL, "stdout": side, "stderr": side}
    process = subprocess.Popen(space.command(*arguments), cwd=space.root, env=variables, **streams)
    os.close(side)
    written = b""
    try:
        while content := os.read(terminal, 1 << 16):
            written += content
    except OSError:  # every other end is closed
        pass
    os.close(terminal)
    assert process.wait() == 0, written.decode()
    return written.decode().replace("\r\n", "\n")


def screen(written: str) -> list[str]:
    """The lines that a terminal shows of that in the end."""
    shown = []
    for row in written.split("\n"):
        line, column = "", 0
        for part in re.findall(r"\r|\x1b\[K|[^\r\x1b]+", row):
            if part == "\r":
                column = 0
            elif part == "\x1b[K":
                line = line[:column]
            else:
                line, column = line[:column] + part + line[column + len(part) :], column + len(part)
        shown.append(line)
    return shown


def without_times(line: str) -> str:
    return re.sub(r"^[\d:]{8} |, \d+ s left", "", line)


def test_a_terminal_has_one_live_line(tmp_path: Path) -> None:
    space = Workspace(tmp_path / "root")
    space.only()
    space.add_experiment("probe", FAILING, n=list(range(1, 9)))
    told = [
        "probe n=4: failed ValueError: no kernel for 4 threads (4/8)",
        "probe n=8: failed ValueError: out of shelves (8/8)",
        "8/8 cells: 3 ok, 5 failed",
        "4 cells of probe: failed ValueError: no kernel for 4 threads",
        "failed: 5 of probe; to measure again: ./run remeasure probe status=failed, then ./run report",
        "as HTML: report/local/report.html",
        "report: report/local/report.md",
    ]
    # Snakemake's own lines come in between.
    written = on_terminal(space, "report", "--quiet", "progress")
    bars = re.findall(r"\r\x1b\[K(\d\d:\d\d:\d\d \[[#.]{20}\] [^\r\n]*)\r", written)
    assert bars[0].endswith("[....................] 0/8 ") and "] 8/8 tables, figures, report" in bars[-1]
    assert max(map(len, bars)) < COLUMNS and not re.search(r"\x1b(?!\[K)", written)
    shown = screen(written)
    assert [line for line in map(without_times, shown) if line in told] == told
    assert not [line for line in shown if re.search(r"\[[#.]{20}\]", line)]
    assert "Select jobs to execute..." in shown and any(line.endswith(": measure probe, shard 0") for line in shown)


def test_a_terminal_that_draws_no_line_again_has_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, side = pty.openpty()
    with open(side, "w") as stream:
        for term, redraws in (("xterm-256color", True), ("dumb", False), ("", False)):
            monkeypatch.setenv("TERM", term)
            assert processes.redraws(stream) is redraws
    os.close(terminal)


def test_what_the_homework_means_to_fail_is_not_to_be_measured_again(tmp_path: Path) -> None:
    watcher, out = watch(tmp_path)
    keep(tmp_path, record(1, "failed", reason="RuntimeError: no", provenance={"error": {"kind": "expected"}}))
    watcher.stop()
    assert [line.split(": ")[0] for line in lines(out)] == ["probe n=1", "1/4 cells"]


def test_what_was_done_before_counts_and_is_not_told(tmp_path: Path) -> None:
    keep(tmp_path, record(1, "failed"), record(2), record(3, fingerprint="0" * 16), record(77))
    watcher, out = watch(tmp_path)
    assert (watcher.total, len(watcher.left)) == (4, 2)
    assert watcher.seconds_left() == pytest.approx(2.0 + 2.0 + estimate.START_S)
    keep(tmp_path, record(3), record(3), record(77))
    watcher.stop()
    assert [line.split(" (")[1] for line in lines(out)[:-1]] == ["3/4, 7 s left)"]


def test_what_was_done_counts_until_other_data_are_made(tmp_path: Path) -> None:
    on_data = [cell(number, data=("tokens",)) for number in (1, 2)]
    digest = tmp_path / "results/local/data/tokens.digest"
    keep(tmp_path, record(1, data_digest="a" * 16))
    made, out = planned(tmp_path, on_data, datasets=["tokens"]), io.StringIO()
    files.write_json(tmp_path / "results/local/plan/data-tokens.json", {})
    watcher = progress.Watcher(tmp_path, made, out)
    assert (watcher.total, len(watcher.left)) == (2, 1)  # no data are there
    for arrays, left in ("a" * 16, 1), ("b" * 16, 2):
        files.write_json(digest, {"arrays": arrays})
        watcher._tell()
        assert len(watcher.left) == left
        os.utime(digest, (0, 0))  # older than its plan
        watcher = progress.Watcher(tmp_path, made, out)
        assert len(watcher.left) == 2  # until they are made anew


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    journal_file(tmp_path).parent.mkdir(parents=True)
    watcher, out = watch(tmp_path)
    whole = journal.as_line({"event": "record", **record(2)})
    with journal_file(tmp_path).open("ab") as stream:
        stream.write(b'{"event": "started", "key": "1", "round": 1}\n{"torn\n\xff\xfe\n' + whole[:40])
    watcher._tell()
    assert lines(out) == []
    with journal_file(tmp_path).open("ab") as stream:
        stream.write(whole[40:])
    watcher.stop()
    assert lines(out) == ["probe n=2: time_ms 2 (1/4, 11 s left)", "1/4 cells: 1 ok"]


OLD = {"fingerprint": "0" * 16}


def planned_by(root: Path, made: plan.Plan) -> tuple[dict[int, str], str, str]:
    """Status by cell; time of the experiment; the last line."""
    text = overview.describe(root, made, ["probe"])
    cells = {int(n): status for n, status in re.findall(r"^probe +n=(\d+) dtype=fp32 +1 +(.*)$", text, re.M)}
    summary = re.findall(r"^probe +\d+ +\d+ +\d+ +(.*)$", text, re.M)
    return cells, summary[0], text.splitlines()[-1].removesuffix("; cell by cell: ./run plan EXPERIMENT")


def test_the_journal_gives_each_cell_its_status(tmp_path: Path) -> None:
    made = planned(tmp_path, [*(cell(n) for n in range(1, 6)), cell(6, skip="preset tiny")])
    cells, time, last = planned_by(tmp_path, made)
    assert cells == {**dict.fromkeys(range(1, 6), "to measure"), 6: "skipped (preset tiny)"}
    assert time == "no estimate: no site of this preset has it"
    assert last == "site local, preset tiny; to measure: without an estimate, probe"
    keep(tmp_path, record(1), record(2, "oom"), record(3, **OLD), record(4, "failed"), record(4))
    cells, _, _ = planned_by(tmp_path, made)
    assert [cells[n] for n in range(1, 6)] == ["ok", "oom", "to measure (code changed)", "ok", "to measure"]
    # After a run of another seed, which is then taken back, and by a third.
    factors = {"n": 1, "dtype": "fp32"}
    for seed, digest in ((0, "a"), (1, "b")):
        keep(tmp_path, record(1, data_digest=digest, key=cell_key("probe", factors, CODE, digest, seed)))
    for seed, status in ((0, "ok"), (1, "ok"), (2, "to measure (seed changed)")):
        of_seed = planned(tmp_path, [cell(1, data=("numbers",))], seed=seed, datasets=["numbers"])
        assert planned_by(tmp_path, of_seed)[0] == {1: status}
    assert planned_by(tmp_path, planned(tmp_path, [cell(1)]))[0] == {1: "ok"}


def test_of_a_published_site_nothing_is_to_be_measured(tmp_path: Path) -> None:
    """Its records count whatever code made them, since they are read-only."""
    made = replace(planned(tmp_path, [cell(n) for n in (1, 2, 3)]), site="lab")
    keep(tmp_path, record(1, **OLD), record(2, "skipped", reason="1 node", values={"before_start": True}), site="lab")
    assert "to measure" in planned_by(tmp_path, made)[0][1]
    (tmp_path / "results" / "lab" / "published.json").write_text("{}")
    assert planned_by(tmp_path, made)[0] == {1: "ok", 2: "skipped (1 node)", 3: "not_run"}
    assert planned_by(tmp_path, made)[2] == "site lab, preset tiny; to measure: nothing"


def test_cells_on_data_that_are_made_anew_are_to_be_measured(tmp_path: Path) -> None:
    made = planned(tmp_path, [cell(1, data=("tokens",))], datasets=["tokens"])
    keep(tmp_path, record(1, data_digest="a" * 16))
    made.units["data-tokens"] = {"parameters": 1}
    made.write(tmp_path / "results/local/plan")
    assert "data changed" not in overview.describe(tmp_path, made, ["probe"])
    made.units["data-tokens"] = {"parameters": 2}
    assert "to measure (data changed)" in overview.describe(tmp_path, made, ["probe"])
