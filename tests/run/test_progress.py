"""Progress: one line a finished cell, read from the journals, with what is left."""

import io
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from planned_site import CODE, cell, journal_file, keep, planned, record

from perfscribe.base import files
from perfscribe.plan import plan
from perfscribe.plan.plan_cells import cell_key
from perfscribe.records import journal
from perfscribe.run import progress
from perfscribe.verbs import overview


def watch(root: Path) -> tuple[progress.Watcher, io.StringIO]:
    """Of cells 1 to 4, and one that is skipped."""
    out = io.StringIO()
    return progress.Watcher(root, planned(root, [*map(cell, (1, 2, 3, 4)), cell(0, skip="preset tiny")]), out), out


def lines(out: io.StringIO) -> list[str]:
    """What was told, the time of day left out."""
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
    # nothing, then 10 s for a cost of 3, then 30 s for a cost of 6.
    assert lines(out) == [
        "probe n=1: time_ms 2 (1/4, 30 s left)",
        "probe n=2: oom why (2/4, 43 s left)",
        "probe n=3: time_ms 2 (3/4, 30 s left)",
        "probe n=4: failed why (4/4)",
        "probe: 1 failed; to measure again: ./run remeasure probe status=failed, then ./run report",
    ]


def test_what_the_homework_means_to_fail_is_not_to_be_measured_again(tmp_path: Path) -> None:
    watcher, out = watch(tmp_path)
    keep(tmp_path, record(1, "failed", reason=f"RuntimeError: {progress.ANSWER}"))
    watcher.stop()
    assert [line.split(": ")[0] for line in lines(out)] == ["probe n=1"]


def test_a_long_reason_is_seen_to_go_on() -> None:
    why = "RuntimeError: the feature number of src and tgt must be equal to d_model"
    shown = progress.headline({"status": "failed", "reason": why})
    assert shown == "failed RuntimeError: the feature number of src and tgt must be equal …" and len(shown) <= 70
    assert progress.headline({"status": "failed", "reason": ""}) == "failed"


def test_what_was_done_before_counts_and_is_not_told(tmp_path: Path) -> None:
    keep(tmp_path, record(1, "failed"), record(2), record(3, fingerprint="0" * 16), record(77))
    watcher, out = watch(tmp_path)
    assert (watcher.total, len(watcher.left)) == (4, 2)
    assert watcher.seconds_left() == pytest.approx(2.0 + 2.0)
    keep(tmp_path, record(3), record(3), record(77))
    watcher.stop()
    assert [line.split(" (")[1] for line in lines(out)] == ["3/4, 2 s left)"]


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
    files.write_json(digest, {"arrays": "b" * 16})
    watcher._tell()
    keep(tmp_path, record(1, data_digest="b" * 16), record(2, data_digest="b" * 16))
    watcher.stop()
    assert [line.split(" (")[1][:3] for line in lines(out)] == ["1/2", "2/2"]


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
    assert lines(out) == ["probe n=2: time_ms 2 (1/4, 6 s left)"]


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
        made = planned(tmp_path, [cell(1, data=("numbers",))], seed=seed)
        assert planned_by(tmp_path, made)[0] == {1: status}
    assert planned_by(tmp_path, planned(tmp_path, [cell(1)]))[0] == {1: "ok"}


def test_of_a_published_site_nothing_is_to_be_measured(tmp_path: Path) -> None:
    """Of whatever code its records are: they are read-only."""
    made = replace(planned(tmp_path, [cell(n) for n in (1, 2, 3)]), site="lab")
    keep(tmp_path, record(1, **OLD), record(2, "skipped", reason="1 node", values={"before_start": True}), site="lab")
    assert "to measure" in planned_by(tmp_path, made)[0][1]
    (tmp_path / "results" / "lab" / "published.json").write_text("{}")
    assert planned_by(tmp_path, made)[0] == {1: "ok", 2: "skipped (1 node)", 3: "not_run"}
    assert planned_by(tmp_path, made)[2] == "site lab, preset tiny; to measure: nothing"


def test_what_was_never_measured_here_takes_as_long_as_on_a_committed_site(tmp_path: Path) -> None:
    made = planned(tmp_path, [cell(n) for n in (1, 2)])
    for name, preset, seconds in (("like", "tiny", (30.0, 40.0)), ("other", "gpu", (1.0, 1.0))):
        for n, wall_s in enumerate(seconds, 2):
            keep(tmp_path, record(n, wall_s=wall_s, **OLD), site=name)
        folder = tmp_path / "results" / name
        (folder / "plan").mkdir()
        (folder / "published.json").write_text("{}")
        (folder / "plan" / "index.json").write_text(f'{{"preset": "{preset}"}}')
    # Cell 2 as there, cell 1 as the median of 30 and 40 s.
    assert planned_by(tmp_path, made)[1] == "about 70 s, as on like"


def test_cells_on_data_that_are_made_anew_are_to_be_measured(tmp_path: Path) -> None:
    made = planned(tmp_path, [cell(1, data=("tokens",))], datasets=["tokens"])
    keep(tmp_path, record(1, data_digest="a" * 16))
    made.units["data-tokens"] = {"parameters": 1}
    made.write(tmp_path / "results/local/plan")
    assert "data changed" not in overview.describe(tmp_path, made, ["probe"])
    made.units["data-tokens"] = {"parameters": 2}
    assert "to measure (data changed)" in overview.describe(tmp_path, made, ["probe"])
