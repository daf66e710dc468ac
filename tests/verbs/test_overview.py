"""`./run plan`: what the journal says of each cell, and how long the rest may take."""

import re
from pathlib import Path

from planned_site import cell, keep, planned, record

from perfscribe.plan import plan
from perfscribe.verbs import overview

OLD = {"fingerprint": "0" * 16}


def told(root: Path, made: plan.Plan) -> tuple[dict[int, str], str, str]:
    """Status by cell; time of the experiment; the last line."""
    text = overview.describe(root, made, ["probe"])
    cells = {int(n): status for n, status in re.findall(r"^probe +n=(\d+) dtype=fp32 +1 +(.*)$", text, re.M)}
    summary = re.findall(r"^probe +\d+ +\d+ +\d+ +(.*)$", text, re.M)
    return cells, summary[0], text.splitlines()[-1].removesuffix("; cell by cell: ./run plan EXPERIMENT")


def test_the_journal_gives_each_cell_its_status(tmp_path: Path) -> None:
    made = planned(tmp_path, [*(cell(n) for n in range(1, 6)), cell(6, skip="preset tiny")])
    cells, time, last = told(tmp_path, made)
    assert cells == {**dict.fromkeys(range(1, 6), "to measure"), 6: "skipped (preset tiny)"}
    assert time == "no estimate: no site of this preset has it"
    assert last == "site local, preset tiny; to measure: without an estimate, probe"
    keep(tmp_path, record(1), record(2, "oom"), record(3, **OLD), record(4, "failed"), record(4))
    cells, _, _ = told(tmp_path, made)
    assert [cells[n] for n in range(1, 6)] == ["ok", "oom", "to measure (code changed)", "ok", "to measure"]


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
    assert told(tmp_path, made)[1] == "about 70 s, as on like"
