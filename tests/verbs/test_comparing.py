"""Sites and commits beside each other: verdicts, what is refused and why, what is read, what the verb says."""

import csv
import gzip
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from planned_site import journal_file, planned, record

from perfscribe.base import files
from perfscribe.base.cells import Cell
from perfscribe.records import journal
from perfscribe.verbs.compare import sides, verb
from perfscribe.verbs.compare.compared import Comparison, compare

CODE, OTHER_CODE = "a" * 16, "b" * 16
FIRST, SECOND = "1" * 40, "2" * 40
SET = "numbers"
DEVICE = {"timer": "CUDA graph replay"}


@dataclass
class Measured:
    """Record of one cell. rounds: samples of time_ms, or of the samples named by `sample`, one list per round."""

    factors: dict[str, Any]
    rounds: Sequence[Sequence[float]] = ()
    status: str = "ok"
    values: dict[str, Any] = field(default_factory=dict)
    flags: Sequence[str] = ()
    sample: str = "time_ms"
    timer: str = "host clock"
    code: str = CODE
    commit: str = FIRST
    dirty: bool = False


def steady(time_ms: float, rounds: int = 6, samples: int = 5) -> list[list[float]]:
    """Samples around a time, a few per mille apart, as are the medians of rounds."""
    return [
        [time_ms * (1 + 0.002 * (3 * number % 5 - 2) + 0.001 * (place - 2)) for place in range(samples)]
        for number in range(rounds)
    ]


def identity(driver: str = "1.0") -> dict[str, Any]:
    """A machine with one GPU."""
    gpu = {"gpu_model": "GPU One", "gpu_count": 1, "gpu_memory_bytes": 2**33, "driver_version": driver}
    return gpu | {"cpu_model": "CPU One", "cpu_cores": 4, "python": "3.12", "libraries": {"torch": "2.9.0"}}


def write_site(
    root: Path,
    site: str,
    cells: Sequence[Measured],
    *,
    machine: dict[str, Any] | None = None,
    data: str = "",
    extra: Sequence[Measured] = (),
) -> None:
    """results/<site> of the experiment `probe`; `local` as a run leaves it, any other as it is published.

    data: digest of the data set that every cell reads. extra: records in the journal that the plan does not ask for.
    """
    folder, name = root / "results" / site, f"{site}-machine"
    reads = (SET,) if data else ()
    unit = {"fingerprint": cells[0].code, "rounds": max(1, *(len(cell.rounds) for cell in cells)), "datasets": reads}
    planned(root, [Cell(cell.factors, data=reads) for cell in cells], site, **unit)
    files.write_json(folder / "environments" / f"{name}.json", machine or identity())
    if data:
        files.write_json(folder / "data" / f"{SET}.digest", {"arrays": data})
    lines = [line for cell in (*extra, *cells) for line in _lines(cell, environment=name, data_digest=data)]
    text = b"".join(map(journal.as_line, lines))
    if site == "local":
        files.write_bytes(journal_file(root), text)
    else:
        files.write_bytes(folder / "journal" / "probe" / "0.jsonl.gz", gzip.compress(text, mtime=0))
        files.write_json(folder / "published.json", {"version": "0", "commit": FIRST, "dirty": False})


def _lines(cell: Measured, **fields: Any) -> Iterator[dict[str, Any]]:
    """A record a round."""
    fields |= {"factors": cell.factors, "values": cell.values, "flags": cell.flags, "fingerprint": cell.code}
    for number, samples in enumerate(cell.rounds or [[]], start=1):
        timed = {"samples": {cell.sample: list(samples)}, "timers": {cell.sample: cell.timer}} if samples else {}
        told = {"commit": cell.commit, "dirty": cell.dirty, "time": f"2026-01-0{number}"}
        one = record(status=cell.status, **{"samples": {}, **timed}, round=number, provenance=told, **fields)
        yield {"event": "record", **one}


def pair(tmp_path: Path, one: Measured, other: Measured) -> list[Comparison]:
    """Two sites of one cell each, compared."""
    write_site(tmp_path, "a", [one])
    write_site(tmp_path, "b", [other])
    return compare(sides.read(tmp_path, "a"), sides.read(tmp_path, "b"))


def timed(time_ms: float, rounds: int = 6, **fields: Any) -> Measured:
    return Measured({"device": "cuda", "n": 1}, steady(time_ms, rounds), **fields)


def only(found: list[Comparison]) -> Comparison:
    (row,) = found
    return row


# --- verdicts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("time_ms", "verdict"), [(1.02, "slower"), (0.98, "faster"), (1.0001, "cannot tell")])
def test_a_verdict_over_rounds(tmp_path: Path, time_ms: float, verdict: str) -> None:
    row = only(pair(tmp_path, timed(1.0), timed(time_ms)))
    assert row.verdict == verdict and row.ratio == pytest.approx(time_ms, abs=0.003)
    assert row.low is not None and row.high is not None and row.low <= time_ms <= row.high
    assert row.reason == ("the interval holds 1" if verdict == "cannot tell" else "the interval excludes 1")


@pytest.mark.parametrize(
    ("time_ms", "fields", "verdict"),
    [(2.0, {}, "cannot tell"), (2.5, {}, "slower"), (1.05, DEVICE, "cannot tell"), (1.2, DEVICE, "slower")],
)
def test_single_runs_decide_only_what_runs_do_not_differ_by(
    tmp_path: Path, time_ms: float, fields: dict[str, str], verdict: str
) -> None:
    one, other = (Measured({"n": 1}, steady(time, 1, samples=9), **fields) for time in (1.0, time_ms))
    row = only(pair(tmp_path, one, other))
    assert row.verdict == verdict and (verdict == "slower" or "single runs" in row.reason)


def test_a_wide_interval_of_single_runs_tells_nothing(tmp_path: Path) -> None:
    """Its far end and its middle are beyond what runs differ by, its near end is not."""
    one, wide = (Measured({"n": 1}, [samples]) for samples in (steady(1.0, 1, 6)[0], [1.5, 2.0, 2.6, 2.7, 2.8, 2.9]))
    row = only(pair(tmp_path, one, wide))
    assert row.ratio == pytest.approx(2.65, abs=0.02) and row.verdict == "cannot tell" and "factor of 2.2" in row.reason


@pytest.mark.parametrize(
    ("name", "a", "b", "verdict"),
    [
        ("peak_allocated_bytes", 1000, 1100, "worse"),
        ("avg_mem_alloc_MB", 1000, 1100, "worse"),
        ("final_loss", 2.0, 2.001, "same"),
        ("train_runtime_s", 10.0, 30.0, "cannot tell"),
        ("train_samples_per_s", steady(100.0), steady(110.0), "faster"),
        ("after_f1_percent", steady(100.0), steady(110.0), "better"),
        ("eval_loss", steady(100.0), steady(110.0), "worse"),
    ],
)
def test_which_way_is_better(tmp_path: Path, name: str, a: Any, b: Any, verdict: str) -> None:
    """Compare single figures and samples."""
    given = ({"rounds": one, "sample": name} if isinstance(one, list) else {"values": {name: one}} for one in (a, b))
    assert only(pair(tmp_path, *(Measured({"n": 1}, **fields) for fields in given))).verdict == verdict


# --- what is refused, withheld, marked ---------------------------------------------------------------------------


def test_what_is_not_alike_is_refused(tmp_path: Path) -> None:
    write_site(tmp_path, "a", [timed(1)], data="d" * 16)
    write_site(tmp_path, "b", [timed(1)], data="e" * 16)
    other_data = compare(*(sides.read(tmp_path, name) for name in "ab"))
    other_timer = pair(tmp_path / "1", timed(1), timed(1, timer="CUDA events"))
    other_work = pair(tmp_path / "2", *(timed(1, values={"parameters": count}) for count in (10, 12)))
    told = [only(found).reason for found in (other_data, other_timer, other_work)]
    assert told == [
        "another data set: the digests differ",
        "another timer: host clock against CUDA events",
        "other work: parameters 10 against 12",
    ]


def test_disturbed_cells_have_a_ratio_and_no_verdict_throttled_ones_are_marked(tmp_path: Path) -> None:
    flag = "foreign process on the GPU (python)"
    row = only(pair(tmp_path / "1", timed(1), timed(3, flags=[flag])))
    assert (row.verdict, row.reason) == ("cannot tell", f"disturbed: B: {flag}") and row.ratio
    flag = "throttled 90 % of the time (power cap)"
    row = only(pair(tmp_path / "2", timed(1, flags=[flag]), timed(3)))
    assert row.verdict == "slower" and f"A: {flag}" in row.marks


def test_cells_that_ended_otherwise_or_stand_alone(tmp_path: Path) -> None:
    ok, oom = timed(1), Measured({"device": "cuda", "n": 1}, status="oom")
    lost, gained = only(pair(tmp_path / "1", ok, oom)), only(pair(tmp_path / "2", oom, ok))
    assert (lost.verdict, lost.status_b, gained.verdict) == ("lost", "oom", "gained")
    assert not pair(tmp_path / "3", oom, oom)
    unsupported = Measured({"device": "cuda", "n": 1}, status="unsupported")
    assert only(pair(tmp_path / "4", ok, unsupported)).verdict == "on one side"
    found = pair(tmp_path / "5", ok, Measured({"device": "cuda", "n": 2}, steady(1)))
    assert [row.verdict for row in found] == ["on one side"] * 2


# --- where sides are read from -----------------------------------------------------------------------------------


def test_a_commit_on_another_machine_is_marked(tmp_path: Path) -> None:
    write_site(tmp_path, "a", [timed(2.0)])
    write_site(tmp_path, "b", [timed(1.0, code=OTHER_CODE)], machine=identity("2.0"))
    a, b = (sides.read(tmp_path, name) for name in "ab")
    marks = only(compare(a, replace(b, site=a.site))).marks
    assert marks == ("code differs", "another machine or software (driver_version)")


def test_the_page_has_a_remark_without_the_flags_numbers(tmp_path: Path) -> None:
    flags = ["throttled 90 % of the time (power cap)"]
    found = pair(tmp_path, timed(1), timed(3, flags=flags, code=OTHER_CODE))
    page = verb.page(sides.read(tmp_path, "a"), sides.read(tmp_path, "b"), found)
    assert re.search(r"\| Remark +\|\n.*\n.*\| code differs; B: throttled 90 % of the time \|\n", page), page


def test_commits_of_site_local(tmp_path: Path) -> None:
    old = timed(2.0, commit=FIRST)
    new = timed(1.0, commit=SECOND, code=OTHER_CODE)
    tried = timed(0.5, commit=SECOND, code="c" * 16, dirty=True)
    write_site(tmp_path, "local", [new], extra=[old, tried])
    a, b = (sides.read(tmp_path, f"local@{commit}") for commit in (FIRST[:8], SECOND))
    assert only(compare(a, b)).verdict == "faster" and a.site == b.site == "local"
    assert only(compare(a, sides.read(tmp_path, "local"))).verdict == "faster"
    planned(tmp_path, [Cell(new.factors)], fingerprint="d" * 16, rounds=6, datasets=())
    (edited,) = sides.read(tmp_path, "local").cells["probe"].values()
    assert edited.record.status == "not_run", "no run has measured the edited code"
    planned(tmp_path, [Cell(new.factors, data=(SET,))], fingerprint=CODE, rounds=6, datasets=[SET])
    (cell,) = sides.read(tmp_path, "local").cells["probe"].values()
    assert cell.record.status == "ok", "its data set was deleted"


def test_two_subjects_of_site_local(tmp_path: Path) -> None:
    def measured(subject: str, ms: float, code: str) -> Measured:
        factors = {"n": 1, "subject": subject, "implementation": subject, "code": code}
        return Measured(factors, steady(ms), sample="both_ms")

    write_site(tmp_path, "local", [timed(1.0), measured("alice", 2.0, "a"), measured("bob", 1.0, "b")])
    found = only(compare(sides.read(tmp_path, "alice"), sides.read(tmp_path, "bob")))
    assert (found.verdict, found.factors) == ("faster", {"n": 1, "implementation": "subject"})
    with pytest.raises(ValueError, match=r"'bobb' is no site, .*did you mean bob\?; subjects: alice, bob"):
        sides.read(tmp_path, "bobb")


# --- the verb ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sites a and b with a slower, a faster and a lost cell."""
    tmp_path = tmp_path_factory.mktemp("two")
    write_site(tmp_path, "a", [Measured({"n": n}, steady(10.0)) for n in (1, 2, 3)])
    slow, fast = (Measured({"n": n}, steady(time)) for n, time in ((1, 11.0), (2, 8.0)))
    write_site(tmp_path, "b", [slow, fast, Measured({"n": 3}, status="timeout")])
    return tmp_path


def test_the_page_and_the_csv(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.main(two, ["a", "b", "--csv", str(two / "x.csv")], dict) == 0
    said = "**2 cells of 1 experiment measured at both sides.** Of their figures, by verdict on B: "
    assert f"{said}1 faster, 1 slower, 1 lost." in capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO((two / "x.csv").read_text())))
    assert [(row["factors"], row["verdict"]) for row in rows] == [("n=1", "slower"), ("n=2", "faster"), ("n=3", "lost")]
    assert tuple(rows[0]) == verb.COLUMNS and all(cell.strip() for row in rows for cell in row.values())
    assert float(rows[0]["low"]) <= float(rows[0]["ratio"]) <= float(rows[0]["high"])
    assert rows[2]["ratio"] == "none" and rows[2]["status_b"] == "timeout"


def test_the_gate(two: Path, capsys: pytest.CaptureFixture) -> None:
    write_site(two, "c", [Measured({"n": 1}, steady(11.0)), Measured({"n": 2}, steady(8.0))])
    write_site(two, "d", [Measured({"n": 9}, steady(11.0))])
    fail = ["--fail-on", "slower", "--threshold"]
    assert verb.main(two, ["a", "c", *fail, "9"], dict) == 1
    assert "compare: 1 of B's figures slower or lost, the first: probe n=1 time_ms" in capsys.readouterr().err
    assert verb.main(two, ["a", "c", *fail, "11"], dict) == 0
    assert verb.main(two, ["a", "b", *fail, "1000"], dict) == 1  # a lost cell
    assert verb.main(two, ["a", "d", *fail, "1000"], dict) == 1
    assert "nothing was compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "b", "--threshold", "-1"], "argument --threshold: got '-1'"),
        (["a", "a"], "A and B are both a"),
        (["ab", "b"], "did you mean b?"),
        (["a@v1", "b"], "is no site"),
        (["local@HEAD~1", "b"], "holds no records of 'HEAD~1'"),
        (["a", "b", "--experiment", "prob"], "did you mean probe?"),
        (["a", "b", "--csv", "/proc/x.csv"], "/proc/x.csv cannot be written"),
    ],
)
def test_bad_words_are_one_line(two: Path, words: list[str], said: str) -> None:
    with pytest.raises((SystemExit, ValueError), match=r"^[^\n]*$") as error:
        verb.main(two, words, dict)
    assert said in str(error.value)
