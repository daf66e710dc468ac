"""Sites and commits beside each other: verdicts, what is refused and why, what is read, what the verb says."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

import compared_sites as made
import numpy as np
import pytest
from compared_sites import Measured, identity, steady, write_site
from workspace import ROOT

from perfscribe import cli
from perfscribe.base import registry
from perfscribe.records import journal
from perfscribe.verbs.compare import metrics, page, ratios, sides, verb
from perfscribe.verbs.compare.cells import is_number
from perfscribe.verbs.compare.compared import Comparison, Row, compare

SLOW_FLAG = "host busy (others use 40 % of the cores)"


def pair(tmp_path: Path, one: Measured, other: Measured, a: str = "a", b: str = "b", **of_b: Any) -> Comparison:
    """Two sites of one cell each, compared."""
    write_site(tmp_path, a, [one])
    write_site(tmp_path, b, [other], **of_b)
    return compare(sides.read(tmp_path, a), sides.read(tmp_path, b))


def timed(time_ms: float, rounds: int = 6, **fields: Any) -> Measured:
    return Measured({"device": "cuda", "n": 1}, steady(time_ms, rounds), **fields)


def only(found: Comparison) -> Row:
    (row,) = found.rows
    return row


# --- verdicts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("time_ms", "verdict"), [(1.02, "slower"), (0.98, "faster"), (1.0001, "cannot tell")])
def test_a_verdict_over_rounds(tmp_path: Path, time_ms: float, verdict: str) -> None:
    row = only(pair(tmp_path, timed(1.0), timed(time_ms)))
    assert row.verdict == verdict and row.found is not None and row.found.over == "rounds"
    assert row.found.low is not None and row.found.high is not None and row.found.ratio is not None
    assert row.found.low <= row.found.ratio <= row.found.high
    assert row.found.ratio == pytest.approx(time_ms, abs=0.003)
    assert row.reason == ("the interval holds 1" if verdict == "cannot tell" else "the interval excludes 1")


def test_one_run_says_what_its_interval_is_over_and_decides_only_what_runs_do_not_differ_by(tmp_path: Path) -> None:
    small = only(pair(tmp_path / "1", timed(1.0, 1), timed(2.0, 1)))
    assert small.verdict == "cannot tell" and "factor of 2.2" in small.reason
    assert small.found is not None and small.found.over == "samples within one run" and small.found.low is not None
    large = only(pair(tmp_path / "2", timed(1.0, 1), timed(2.5, 1)))
    assert large.verdict == "slower" and large.found is not None and large.found.over == "samples within one run"
    device = {"timer": "CUDA graph replay"}
    assert only(pair(tmp_path / "3", timed(1.0, 1, **device), timed(1.2, 1, **device))).verdict == "slower"
    assert only(pair(tmp_path / "4", timed(1.0, 1, **device), timed(1.05, 1, **device))).verdict == "cannot tell"


def test_a_wide_interval_of_single_runs_tells_nothing(tmp_path: Path) -> None:
    """Its far end and its middle lie beyond what runs differ by, its near end does not."""
    wide = Measured({"device": "cuda", "n": 1}, [[1.5, 2.0, 2.6, 2.7, 2.8]])
    row = only(pair(tmp_path, timed(1.0, 1), wide))
    assert row.found is not None and row.found.ratio == pytest.approx(2.6, abs=0.02) and row.found.low is not None
    assert 1 < row.found.low < 2.2 and row.verdict == "cannot tell" and "factor of 2.2" in row.reason


def test_few_rounds_are_no_interval_over_rounds(tmp_path: Path) -> None:
    row = only(pair(tmp_path, timed(1.0, 6), timed(1.5, 5)))
    assert row.found is not None and row.found.over == "samples within 6 runs" and row.verdict == "cannot tell"
    assert "rounds 6 against 5" in row.marks


def test_one_sample_has_a_ratio_and_no_verdict(tmp_path: Path) -> None:
    one = Measured({"n": 1}, [[1.0]])
    row = only(pair(tmp_path, one, Measured({"n": 1}, [[30.0]])))
    assert row.found is not None and row.found.ratio == 30 and row.found.low is None
    assert row.verdict == "cannot tell" and row.reason == "1 sample against 1, 5 a side are needed, or 6 rounds"


def test_a_higher_rate_is_faster(tmp_path: Path) -> None:
    cells = [Measured({"n": 1}, steady(rate), sample="train_samples_per_s") for rate in (100.0, 110.0)]
    row = only(pair(tmp_path, *cells))
    assert row.verdict == "faster" and row.kind == "rate"
    assert row.found is not None and row.found.ratio == pytest.approx(1.1, abs=0.01)


@pytest.mark.parametrize(
    ("name", "a", "b", "verdict"),
    [
        ("peak_allocated_bytes", 1000, 900, "better"),
        ("peak_allocated_bytes", 1000, 1100, "worse"),
        ("peak_allocated_bytes", 1000, 1009, "same"),
        ("peak_allocated_bytes", 0, 0, "same"),
        ("final_loss", 2.0, 2.001, "same"),
        ("final_loss", 2.0, 1.5, "cannot tell"),
        ("after_f1_percent", 40.0, 60.0, "cannot tell"),
        ("train_runtime_s", 10.0, 30.0, "cannot tell"),
    ],
)
def test_single_figures(tmp_path: Path, name: str, a: float, b: float, verdict: str) -> None:
    cells = [Measured({"n": 1}, values={name: value}) for value in (a, b)]
    assert only(pair(tmp_path, *cells)).verdict == verdict


def test_better_scores_and_losses_over_rounds() -> None:
    assert ratios.judge(steady(40.0), steady(60.0), "score").verdict == "better"
    assert ratios.judge(steady(2.0), steady(1.5), "loss").verdict == "better"
    assert ratios.judge(steady(1.5), steady(2.0), "loss").verdict == "worse"


def test_figures_of_zero_have_no_ratio() -> None:
    none = ratios.judge([[0.0] * 5], [[1.0] * 5], "time")
    assert none.ratio is None and none.verdict == "cannot tell"
    assert ratios.judge([[0.0]], [[5.0]], "memory").verdict == "worse"
    with pytest.raises(ValueError, match="samples in every round"):
        ratios.judge([[]], [[1.0]], "time")


@pytest.mark.parametrize("size", [1, 2, 5, 8, 31])
def test_medians_are_those_of_drawn_resamples(size: int) -> None:
    """By order statistics against resamples drawn one by one: the shares at or below every sample are alike."""
    random = np.random.default_rng(3)
    samples = np.sort(random.gamma(9, size=size))
    drawn = np.median(samples[random.integers(0, size, (20_000, size))], axis=1)
    found = ratios._resampled_medians(samples, 0)
    shares = [[float((medians <= limit).mean()) for limit in samples] for medians in (found, drawn)]
    assert shares[0] == pytest.approx(shares[1], abs=0.02)


def test_the_interval_covers() -> None:
    """The nominal 95 % from the fewest samples on; two medians of the same distribution have the ratio 1."""
    random = np.random.default_rng(4)
    held = 0
    for _ in range(600):
        a, b = 1 + 0.03 * random.exponential(size=(2, ratios.SAMPLES_FOR_INTERVAL))
        low, high = ratios._interval(a, b)
        held += low <= 1 <= high
    assert held / 600 > 0.93


@pytest.mark.skipif(not (ROOT / "results" / "h200").is_dir(), reason="site h200 is not there")
def test_what_runs_differ_by_is_what_a_committed_site_shows() -> None:
    """The same passes of the same code, timed by two experiments in processes of their own."""

    def rows(experiment: str) -> dict[tuple, dict]:
        path = ROOT / "results" / "h200" / "journal" / experiment / "0.jsonl.gz"
        found = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        chosen = [row for row in found if not row["factors"].get("detailed")]
        return {tuple(row["factors"][name] for name in ("size", "seq_len", "dtype")): row for row in chosen}

    one, other = rows("end_to_end"), rows("nsys_profile")
    found = []
    for key in one.keys() & other.keys():
        for name in ("forward_ms", "backward_ms", "optimizer_ms", "full_step_ms"):
            medians = [statistics.median(side[key]["samples"][name]) for side in (one, other)]
            found.append(max(medians) / min(medians))
    assert len(found) > 50
    assert 2 < max(found) < ratios.HOST_RUNS_DIFFER
    text = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    assert f"{max(found):.2f}" in text and f"{len(found)} pairs" in text


# --- what is refused, withheld, marked ---------------------------------------------------------------------------


def refusal(found: Comparison) -> str:
    row = only(found)
    assert row.verdict == "refused" and row.found is None
    return row.reason


def test_other_data_are_refused(tmp_path: Path) -> None:
    write_site(tmp_path, "a", [timed(1)], data="d" * 16)
    write_site(tmp_path, "b", [timed(1)], data="e" * 16)
    assert refusal(compare(*(sides.read(tmp_path, name) for name in "ab"))).startswith("another data set")


def test_other_timers_are_refused_and_versions_marked(tmp_path: Path) -> None:
    assert "another timer: host clock against CUDA events" in refusal(
        pair(tmp_path / "1", timed(1), timed(1, timer="CUDA events"))
    )
    row = only(pair(tmp_path / "2", timed(1, timer="nsys 2025.3.2"), timed(1, timer="nsys 2026.1.0")))
    assert row.found is not None and "timer nsys 2025.3.2 against nsys 2026.1.0" in row.marks


def test_other_work_is_refused(tmp_path: Path) -> None:
    cells = [timed(1, values={"parameters": count}) for count in (10, 12)]
    assert refusal(pair(tmp_path, *cells)) == "other work: parameters 10 against 12"


def test_other_ways_to_count_memory_are_refused(tmp_path: Path) -> None:
    cells = [
        Measured({"n": 1}, values={"peak_allocated_bytes": 5, "memory_counter": counter})
        for counter in ("CUDA caching allocator", "CPU allocator")
    ]
    assert refusal(pair(tmp_path, *cells)).startswith("counted in another way")


def test_losses_of_another_seed_are_refused_and_times_marked(tmp_path: Path) -> None:
    cells = [timed(1, values={"final_loss": 2.0})] * 2
    found = {row.name: row for row in pair(tmp_path, *cells, seed=1).rows}
    assert found["final_loss"].reason == "another seed: 0 against 1"
    assert found["time_ms"].verdict == "cannot tell" and "another seed" in found["time_ms"].marks


@pytest.mark.parametrize("flag", [SLOW_FLAG, "foreign process on the GPU (python)"])
def test_disturbed_cells_have_a_ratio_and_no_verdict(tmp_path: Path, flag: str) -> None:
    row = only(pair(tmp_path, timed(1), timed(3, flags=[flag])))
    assert row.verdict == "cannot tell" and row.reason == f"disturbed: B: {flag}"
    assert row.found is not None and row.found.ratio == pytest.approx(3, abs=0.01)


def test_throttled_cells_are_marked(tmp_path: Path) -> None:
    flag = "throttled 90 % of the time (power cap)"
    row = only(pair(tmp_path, timed(1, flags=[flag]), timed(3)))
    assert row.verdict == "slower" and f"A: {flag}" in row.marks


def test_sites_of_unlike_machines_are_compared_as_machines(tmp_path: Path) -> None:
    other = identity(gpu_model="GPU Two", libraries={"torch": "2.8.0"})
    found = pair(tmp_path, timed(1), timed(3, code=made.OTHER_CODE), machine=other)
    assert only(found).verdict == "slower" and "code differs" in only(found).marks
    text = page.markdown(found)
    assert "| gpu_model | GPU One" in " ".join(text.split()) and "| torch | 2.9.0 | 2.8.0 |" in " ".join(text.split())


def test_cpu_cells_stand_beside_gpu_cells_only_where_the_timer_is_the_same(tmp_path: Path) -> None:
    on_cpu = Measured({"device": "cpu", "n": 1}, steady(9))
    row = only(pair(tmp_path / "1", timed(1), on_cpu))
    assert row.verdict == "slower" and "device cuda against cpu" in row.marks
    assert "another timer" in refusal(pair(tmp_path / "2", timed(1, timer="CUDA events"), on_cpu))


def test_the_same_device_is_preferred(tmp_path: Path) -> None:
    """A site with both has its own device's cell compared, and the other one stands alone."""
    write_site(tmp_path, "a", [timed(1)])
    write_site(tmp_path, "b", [timed(3), Measured({"device": "cpu", "n": 1}, steady(9))])
    found = compare(*(sides.read(tmp_path, name) for name in "ab"))
    assert {(row.factors["device"], row.verdict) for row in found.rows} == {("cuda", "slower"), ("cpu", "on one side")}


def test_numbers_of_repetitions_do_not_part_cells(tmp_path: Path) -> None:
    for site, passes in (("a", 100), ("b", 50)):
        cell = Measured({"device": "cuda", "n": 1, "passes": passes}, steady(1), sample="forward_ms")
        write_site(tmp_path, site, [cell], experiment="attention")
    row = only(compare(*(sides.read(tmp_path, name) for name in "ab")))
    assert "passes 100 against 50" in row.marks and row.found is not None


def test_repetitions_are_passed_over_before_hardware_is(tmp_path: Path) -> None:
    """With other passes at both, a CPU's cell still stands beside the CPU's and a GPU's beside the GPU's."""
    for site, passes in (("a", 100), ("b", 50)):
        cells = [
            Measured({"device": device, "passes": passes}, steady(time), sample="forward_ms")
            for device, time in (("cpu", 9), ("cuda", 1))
        ]
        write_site(tmp_path, site, cells[: 2 if site == "a" else 1], experiment="attention")
    found = compare(*(sides.read(tmp_path, name) for name in "ab"))
    told = {(row.factors["device"], row.verdict) for row in found.rows}
    assert told == {("cpu", "cannot tell"), ("cuda", "on one side")}


def test_cells_that_ended_otherwise(tmp_path: Path) -> None:
    ok, oom = timed(1), Measured({"device": "cuda", "n": 1}, status="oom")
    lost, gained = only(pair(tmp_path / "1", ok, oom)), only(pair(tmp_path / "2", oom, ok))
    assert (lost.verdict, lost.status_b, gained.verdict) == ("lost", "oom", "gained")
    assert not pair(tmp_path / "3", oom, oom).rows
    unsupported = Measured({"device": "cuda", "n": 1}, status="unsupported")
    assert only(pair(tmp_path / "4", ok, unsupported)).verdict == "on one side"


def test_cells_of_one_side(tmp_path: Path) -> None:
    found = pair(tmp_path, timed(1), Measured({"device": "cuda", "n": 2}, steady(1)))
    assert [row.verdict for row in found.rows] == ["on one side"] * 2
    assert "No cell that is compared was measured at both sides" in page.markdown(found)


# --- metrics ----------------------------------------------------------------------------------------------------


def recorded() -> list[tuple[str, str]]:
    """Experiment and name of every number in the committed journals."""
    found = set()
    for path in ROOT.glob("results/*/journal/*/*.jsonl.gz"):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            row = json.loads(line)
            numbers = [name for name, value in row["values"].items() if is_number(value)]
            found |= {(row["experiment"], name) for name in (*row["samples"], *numbers)}
    return sorted(found)


def test_every_figure_of_committed_sites_is_known() -> None:
    names = [(experiment, name) for experiment, name in recorded() if experiment not in metrics.NOT_COMPARED]
    assert not [(experiment, name) for experiment, name in names if metrics.metric(name).why == metrics.UNKNOWN]


def test_every_experiment_has_a_figure_that_speaks_for_it_or_is_not_compared() -> None:
    known = set(registry.measured(ROOT))
    assert set(metrics.HEADLINES) <= known and set(metrics.NOT_COMPARED) <= known
    for experiment, names in metrics.HEADLINES.items():
        assert all(metrics.metric(name).kind for name in names), experiment
    assert not set(metrics.HEADLINES) & set(metrics.NOT_COMPARED)


def test_no_pattern_is_hidden_by_an_earlier_one() -> None:
    literal = [known for known in metrics.METRICS if "*" not in known.pattern]
    assert all(metrics.metric(known.pattern) is known for known in literal)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("forward_ms", "time"),
        ("steps/s", "rate"),
        ("train_samples_per_s", "rate"),
        ("busbw_gb_per_s", "rate"),
        ("naive_peak_bytes", "memory"),
        ("gradient_bytes", None),
        ("naive_traced_step_ms", None),
        ("loss_relative_error", None),
        ("power_w", None),
        ("eval_loss", "loss"),
        ("after_exact_match_percent", "score"),
    ],
)
def test_kinds(name: str, kind: str | None) -> None:
    assert metrics.metric(name).kind == kind


def test_an_unknown_figure_is_said_to_be_unknown(tmp_path: Path) -> None:
    cells = [timed(1, values={"vim": value}) for value in (1, 2)]
    found = pair(tmp_path, *cells)
    assert found.names == {metrics.UNKNOWN: {"vim"}} and metrics.UNKNOWN in page.markdown(found)


# --- where sides are read from -----------------------------------------------------------------------------------


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A git repository in which site `demo` became faster between the tags v1 and v2, and one record stayed."""
    kept = Measured({"device": "cuda", "n": 2}, steady(5))
    for tag, cell in (("v1", timed(2.0)), ("v2", timed(1.0, code=made.OTHER_CODE))):
        shutil.rmtree(tmp_path / "results", ignore_errors=True)
        write_site(tmp_path, "demo", [cell], extra=[])
        add(tmp_path, "demo", kept)
        git(tmp_path, "add", "results")
        git(tmp_path, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", tag)
        git(tmp_path, "tag", tag)
    return tmp_path


def git(root: Path, *words: str) -> None:
    if not (root / ".git").exists():
        subprocess.run(["git", "init", "-q", str(root)], check=True)
    subprocess.run(["git", "-C", str(root), *words], check=True)


def add(root: Path, site: str, cell: Measured) -> None:
    """Another experiment of the site, with one cell."""
    write_site(root / "beside", site, [cell], experiment="kept")
    for part in ("plan/measure-kept-0.json", "journal/kept/0.jsonl.gz"):
        target = root / "results" / site / part
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / "beside" / "results" / site / part, target)
    shutil.rmtree(root / "beside")


def test_revisions_of_a_site(history: Path) -> None:
    found = compare(sides.read(history, "demo@v1"), sides.read(history, "demo@v2"))
    verdicts = {row.experiment: row.verdict for row in found.rows}
    assert verdicts == {"probe": "faster", "kept": "same record"}
    now = compare(sides.read(history, "demo@v1"), sides.read(history, "demo"))
    assert [row.verdict for row in now.rows] == [row.verdict for row in found.rows]


def test_a_revision_on_another_machine_and_of_other_code_is_refused(history: Path) -> None:
    shutil.rmtree(history / "results")
    write_site(history, "demo", [timed(1.0, code=made.OTHER_CODE)], machine=identity(gpu_model="GPU Two"))
    found = compare(sides.read(history, "demo@v1"), sides.read(history, "demo"), ["probe"])
    assert refusal(found) == "machine and code changed together: not attributable (gpu_model)"
    write_site(history, "demo", [timed(1.0, code=made.OTHER_CODE)], machine=identity(driver_version="2.0"))
    row = only(compare(sides.read(history, "demo@v1"), sides.read(history, "demo"), ["probe"]))
    assert row.verdict == "faster" and "other software (driver_version)" in row.marks


def test_a_revision_of_the_same_code_on_another_machine_is_compared_as_a_machine(history: Path) -> None:
    shutil.rmtree(history / "results")
    write_site(history, "demo", [timed(3.0)], machine=identity(gpu_model="GPU Two"))
    row = only(compare(sides.read(history, "demo@v1"), sides.read(history, "demo"), ["probe"]))
    assert row.verdict == "slower" and "same code, another machine (gpu_model)" in row.marks


def test_the_newest_record_of_a_commit_counts(tmp_path: Path) -> None:
    """Measured twice at one commit, as with changes in between that were committed with it."""
    early, late = (timed(time, 1, code=code) for time, code in ((9.0, "c" * 16), (2.0, "d" * 16)))
    write_site(tmp_path, "local", [timed(1.0, 1)], extra=[late, early])
    path = tmp_path / "results" / "local" / "journal" / "probe" / "0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line, day in zip(lines, ("03", "02", "01"), strict=True):
        line["provenance"]["time"] = f"2026-01-{day}"
        del line["digest"]
    path.write_bytes(b"".join(map(journal.as_line, lines)))
    (cell,) = sides.read(tmp_path, f"local@{made.FIRST}").cells["probe"].values()
    assert cell.record.samples["time_ms"] == steady(2.0, 1)


def test_commits_of_site_local(tmp_path: Path) -> None:
    old = timed(2.0, commit=made.FIRST)
    new = timed(1.0, commit=made.SECOND, code=made.OTHER_CODE)
    tried = timed(0.5, commit=made.SECOND, code="c" * 16, dirty=True)
    write_site(tmp_path, "local", [new], extra=[old, tried])
    a, b = sides.read(tmp_path, f"local@{made.FIRST[:8]}"), sides.read(tmp_path, made.SECOND)
    assert only(compare(a, b)).verdict == "faster" and a.site == b.site == "local"
    assert only(compare(a, sides.read(tmp_path, "local"))).verdict == "faster"
    dirty = only(compare(b, sides.read(tmp_path, f"local@{made.SECOND[:8]}+")))
    assert dirty.found is not None and dirty.found.ratio == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dmo", "did you mean demo?"),
        ("demo@v9", "git knows no revision 'v9'"),
        ("demo@--output=x", "git knows no revision"),
        ("other@v1", "there is no results/other at v1"),
        ("../demo@v1", "is no site"),
        ("demo@", "is no site"),
        ("local@v1", "site local holds no records of 'v1'"),
        ("", "is no site"),
    ],
)
def test_wrong_names_are_one_line(history: Path, name: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"^compare: ") as error:
        sides.read(history, name)
    assert said in str(error.value) and "\n" not in str(error.value)


# --- the verb ---------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Sites a and b with a slower, a faster and a lost cell."""
    write_site(tmp_path, "a", [Measured({"n": n}, steady(10.0)) for n in (1, 2, 3)])
    slow, fast = (Measured({"n": n}, steady(time)) for n, time in ((1, 11.0), (2, 8.0)))
    write_site(tmp_path, "b", [slow, fast, Measured({"n": 3}, status="timeout")])
    return tmp_path


def test_the_page_and_the_csv(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.main(two, ["a", "b", "--csv", str(two / "x.csv"), "--markdown", str(two / "x.md")]) == 0
    told, text = capsys.readouterr().out, (two / "x.md").read_text()
    assert text.startswith(told) and "## Every figure" in text and "## Every figure" not in told
    said = "**2 cells of 1 experiment measured at both sides.** Of their figures, by verdict on B: "
    assert f"{said}1 faster, 1 slower, 1 lost." in told
    rows = list(csv.DictReader(io.StringIO((two / "x.csv").read_text())))
    assert [(row["cell"], row["verdict"]) for row in rows] == [("n=1", "slower"), ("n=2", "faster"), ("n=3", "lost")]
    assert tuple(rows[0]) == page.COLUMNS and all(cell.strip() for row in rows for cell in row.values())
    assert float(rows[0]["low"]) <= float(rows[0]["ratio"]) <= float(rows[0]["high"])
    assert rows[0]["interval_over"] == "rounds" and rows[2]["ratio"] == "none" and rows[2]["status_b"] == "timeout"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ([], 0),
        (["--fail-on", "slower"], 1),
        (["--fail-on", "slower", "--threshold", "5"], 1),
        (["--fail-on", "worse"], 1),
    ],
)
def test_exit_status(two: Path, words: list[str], status: int) -> None:
    assert verb.main(two, ["a", "b", *words]) == status


def test_a_threshold_lets_small_changes_pass_and_a_lost_cell_never(two: Path, capsys: pytest.CaptureFixture) -> None:
    write_site(two, "c", [Measured({"n": 1}, steady(11.0)), Measured({"n": 2}, steady(8.0))])
    fail = ["--fail-on", "slower", "--threshold"]
    assert verb.main(two, ["a", "c", *fail, "9"]) == 1
    assert "compare: 1 of B's figures slower or lost, the first: probe n=1 time_ms" in capsys.readouterr().err
    assert verb.main(two, ["a", "c", *fail, "11"]) == 0
    assert verb.main(two, ["a", "b", *fail, "1000"]) == 1
    assert "probe n=3" in capsys.readouterr().err


def test_worse_memory_is_not_slower(tmp_path: Path) -> None:
    for site, peak in (("a", 100), ("b", 200)):
        write_site(tmp_path, site, [Measured({"n": 1}, values={"peak_allocated_bytes": peak})])
    assert verb.main(tmp_path, ["a", "b", "--fail-on", "slower"]) == 0
    assert verb.main(tmp_path, ["a", "b", "--fail-on", "worse"]) == 1


def test_a_device_or_a_link_is_written_through(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (two / "real.csv").write_text("old")
    (two / "link.csv").symlink_to("real.csv")
    assert verb.main(two, ["a", "b", "--csv", str(two / "link.csv"), "--markdown", "/dev/null"]) == 0
    assert (two / "link.csv").is_symlink() and "verdict" in (two / "real.csv").read_text()
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("name", ["active_step_ms", "profile_ms", "forward_range_ms", "first_profiled_train_s"])
def test_times_under_a_profiler_are_not_compared(name: str) -> None:
    assert metrics.metric(name).kind is None


def test_a_gate_that_saw_nothing_stays_shut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair(tmp_path, timed(1), Measured({"device": "cuda", "n": 2}, steady(1)))
    assert verb.main(tmp_path, ["a", "b", "--fail-on", "slower"]) == 1
    assert "nothing was compared" in capsys.readouterr().err


def test_experiments_are_chosen(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.main(history, ["demo@v1", "demo@v2", "--experiment", "kept"]) == 0
    told = capsys.readouterr().out
    assert "`kept`" in told and "`probe`" not in told
    with pytest.raises(ValueError, match=r"neither side holds the experiment 'prob'; .*did you mean probe\?"):
        verb.main(history, ["demo@v1", "demo@v2", "--experiment", "prob"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: A, B"),
        (["a"], "the following arguments are required: B"),
        (["a", "b", "--threshold", "-1"], "argument --threshold: got '-1'"),
        (["a", "b", "--fail-on", "red"], "invalid choice: 'red'"),
        (["a", "b", "c"], "unrecognized arguments: c"),
    ],
)
def test_bad_words_are_one_line(two: Path, words: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as error:
        verb.main(two, words)
    assert str(error.value).startswith("run: compare: ") and said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_site_is_not_compared_with_itself_nor_written_anywhere(two: Path) -> None:
    with pytest.raises(ValueError, match="A and B are both a"):
        verb.main(two, ["a", "a"])
    (two / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        verb.main(two, ["a", "b", "--csv", str(two / "file" / "x.csv")])


@pytest.mark.skipif(not (ROOT / "results" / "h200x4").is_dir(), reason="the committed sites are not there")
def test_the_committed_sites(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "h200", "h200x4"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("# h200x4 against h200\n") and "| gpu_count" in told
