"""Quantities, rows and phrases of chapters: rounding, what is missing, what is within noise; tables read as written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chapter_sites import SITES, folder

from perfscribe.base.chapters import Source
from perfscribe.report import phrases
from perfscribe.report.page import blocks
from perfscribe.report.quantities import MISSING, Quantity, in_prose, is_incomplete
from perfscribe.report.rows import Mistake, Rows, Site
from perfscribe.show import tables


def rows(*ms: float | str, boots: Sequence[str] = (), rounds: Sequence[int] = (), device: str = "cpu") -> Rows:
    """A row for each time in ms (with a spread of 1 either way), by n = 1, 2, 4, …; a text is a row's status."""
    kinds = {"n": "factor", "time_ms": "figure"} | ({"boots": "unshown"} if boots else {})
    columns = {name: {"kind": kind, "exact": kind != "figure", "spread": ""} for name, kind in kinds.items()}
    columns["time_ms"]["spread"] = "time_ms_iqr"
    stored: list[dict[str, Any]] = []
    for at, time in enumerate(ms):
        status = time if isinstance(time, str) else "ok"
        stored.append({"n": 2**at, "time_ms": time, "time_ms_iqr": 2, "status": status, "reason": "why"})
    for row, boot in zip(stored, boots, strict=False):
        row["boots"] = boot
    for row, count in zip(stored, rounds, strict=False):
        row["rounds"] = count
    return Rows(Site("made", Path("nowhere"), device), "cs336.made", columns, stored)


def text(shown: Any) -> str:
    return in_prose(str(shown))


def test_a_number_is_no_finer_than_what_it_is_computed_from_and_missing_where_that_is() -> None:
    wide, fine = Quantity(123.456, 20), Quantity(7.654321, 0.001)
    assert (text(fine), text(wide), text(wide / fine), text(2 * fine)) == ("7.654", "123", "16", "15.3")
    assert not (MISSING > 1 or MISSING <= 1) and not MISSING + 1 and is_incomplete(f"{MISSING} ms")
    assert text(Quantity(8192.4, exact=True)) == "8192" and text(Quantity(65536.2).whole) == "65536"


@pytest.mark.parametrize(
    ("rounds", "deviation", "samples"),
    [
        ((), "half IQR", "12 to 24"),
        ((1, 1), "half IQR", "12 to 24"),
        ((3, 3), "half the range of 3 rounds", "4 to 8"),
        ((2, 3), "half the range of 2 to 3 rounds", "6 to 8"),
        ((1, 3), "half the range of 3 rounds, or half IQR where there is one,", "8 to 12"),
    ],
)
def test_a_spread_says_of_how_many_rounds_and_samples_of_each_and_what_it_is_in_rows_of_one(
    rounds: Sequence[int], deviation: str, samples: str
) -> None:
    timed = rows(12, 24, rounds=rounds)
    assert timed.deviation == deviation and timed.span_of_round("time_ms") == samples


def test_extremes_and_growth_have_no_figure_where_a_row_has_none() -> None:
    apart, alike = phrases.extremes(rows(10, 30, 20), "time_ms"), phrases.extremes(rows(10, 11), "time_ms")
    assert apart and (apart.least.n, apart.most.n, apart.same) == (1, 2, False) and alike.same
    assert not phrases.extremes(rows(10, "oom"), "time_ms")
    measured = rows(10, 40, 160).sorted_by("n")
    assert text(phrases.growth(measured, "time_ms", by="n")) == "4.00"
    assert not phrases.growth(measured[:1], "time_ms", by="n")


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((1, 2, "failed"), "All 2 cells that ran fit in memory."),
        ((1, "oom"), "Only 2 runs out of memory."),
        ((1, "oom", "oom"), "2 cells run out of memory, the smallest of them 2."),
        (("skipped",), ""),
    ],
)
def test_out_of_memory(statuses: tuple[Any, ...], expected: str) -> None:
    assert text(phrases.out_of_memory(rows(*statuses), "n")) == expected


def test_a_cost_within_noise_of_zero_or_below_it_is_said_in_words() -> None:
    assert text(phrases.beyond_noise(Quantity(5.85, 0.5), " ms")) == "5.85 ms"
    for cost in (Quantity(3.0, 3.5), Quantity(-1.0, 3.5), Quantity(-27.0, 2.0), Quantity(-27.0)):
        assert phrases.beyond_noise(cost, " ms") == "nothing beyond noise"
    assert is_incomplete(phrases.beyond_noise(MISSING))


def test_a_table_whose_numbers_are_of_several_boots_says_so() -> None:
    def setup(*boots: str) -> str:
        lines = "\n".join(f"| {row.n} | {2 * row.time_ms} |" for row in rows(*[10.0] * len(boots), boots=boots))
        text = f"**T.** Median; one clock.\n\n| n | ms |\n| --- | --- |\n{lines}"
        (table,) = blocks(text, Source(Path("a.md"), "", {}))
        return table.setup  # type: ignore[union-attr]

    several = "Median; one clock; rows ran on 2 boots or hosts, which may cause differences and ±."
    assert setup("a", "b", "a") == several == setup("a", "a+b")
    rounds = "Median; one clock; each row is of the same 2 boots or hosts, so ± includes their differences."
    assert setup("a+b", "a+b") == rounds
    assert setup("a", "a") == setup("none", "none") == "Median; one clock."


def test_a_missing_row_is_a_row_and_an_unknown_column_a_mistake() -> None:
    measured = rows(10, "oom")
    absent = measured.row(n=64)
    assert not absent and absent.n == 64 and not absent.time_ms
    assert (measured.row(n=2).time_ms.word, measured.row(n=2).time_ms.why) == ("OOM", "why")
    with pytest.raises(Mistake, match=r"no column 'tme_ms'; did you mean 'time_ms'\?"):
        measured.row(tme_ms=1)


@pytest.mark.parametrize(("device", "levels"), [("cuda", [1, 2, 16]), ("cpu", [1, 2, 4, 8])])
def test_levels_that_the_homework_does_not_ask_for_are_rows_where_they_ran(device: str, levels: list[int]) -> None:
    """n = 4, which did not fit, and n = 8, not run, are another edition's; n = 16 the homework's, asked of a GPU."""
    cells = rows(10, 20, "oom", "not_run", device=device).grid(n=[2, 16])
    assert [row.n for row in cells] == levels


@pytest.mark.parametrize("name", SITES)
def test_a_table_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    """Numbers are numbers again, and writing them gives the same bytes."""
    for path in sorted(folder(name).glob("*.csv")):
        stored = tables.read(path.parent, path.stem)
        columns = [tables.Column(one, "", lambda record: None) for one in stored.columns]
        frame = tables.pd.DataFrame(stored.rows, columns=[*stored.columns, *tables.ROW_COLUMNS], dtype=object)
        tables.write(tables.Table(path.stem, "", columns, frame), tmp_path)
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize(
    ("flags", "percent"),
    [
        ("throttled 16 % of the time (power cap); throttled 5 % of the time (power cap)", 16),
        ("host busy (14 %); throttled 5 % of the time (power cap); throttled 63 % of the time (power cap)", 63),
        ("throttled in 3 of 4 readings (power cap)", 75),
        ("throttled 40 % of the time (temperature)", 0),
        ("none", 0),
    ],
)
def test_the_worst_round_under_the_power_cap(flags: str, percent: float) -> None:
    assert phrases.power_capped(flags) == percent
