"""Precisions side by side: pairs of cells, their speed-ups, and published ones beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from matplotlib import pyplot as plt

from perfscribe.experiments.mixed_precision import drawings, rows, show
from perfscribe.experiments.mixed_precision.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import markdown_tables, presenting
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

SIZES = ("small", "medium", "large")
# Forward in ms by size and dtype; backward takes twice as long, both together three times.
FORWARD = {
    "fp32": {"small": 20.0, "medium": 60.0, "large": 120.0},
    "tf32": {"small": 10.0, "medium": 20.0, "large": 40.0},
    "bf16": {"small": 16.0, "medium": 20.0, "large": 30.0},
    "fp16": {"small": 15.0, "medium": 20.0, "large": 30.0},
}


def cell(size: str, dtype: str, seq_len: int = 512, status: str = "ok", **more: Any) -> Record:
    """A cell of end_to_end whose three samples a pass differ by a thousandth."""
    factors = {"device": "cuda", "size": size, "seq_len": seq_len, "dtype": dtype, "batch": 4, "warmup_steps": 5}
    forward = FORWARD[dtype][size]
    passes = {"forward_ms": forward, "backward_ms": 2 * forward, "forward_backward_ms": 3 * forward}
    samples = {name: [[0.999 * time, time, 1.001 * time]] for name, time in passes.items()} if status == "ok" else {}
    reason = "" if status == "ok" else "why"
    return Record("end_to_end", factors, status, reason, "measured", samples=samples, **more)


def grid(dtypes: Sequence[str] = tuple(FORWARD), sizes: Sequence[str] = SIZES) -> list[Record]:
    return [cell(size, dtype) for size in sizes for dtype in dtypes]


def traced(size: str, dtype: str, busy_ms: float, device: str = "cuda") -> Record:
    """A cell of nsys_profile whose kernels take this long in forward, and twice as long in backward."""
    factors = {"device": device, "size": size, "seq_len": 512, "dtype": dtype, "batch": 4, "traced_steps": 3}
    samples = {"forward_busy_ms": [[busy_ms]], "backward_busy_ms": [[2 * busy_ms]]}
    return Record("nsys_profile", factors, "ok", "", "measured", samples=samples)


def shown(cells: list[Record], *traces: Record) -> dict[str, Table]:
    records = {"end_to_end": cells, "nsys_profile": list(traces)}
    return {table.id.removeprefix("cs336.mixed_precision"): table for table in show.tables(records)}


def row(table: Table, **levels: Any) -> dict[str, Any]:
    (found,) = [r for r in table.frame.to_dict("records") if all(r[name] == level for name, level in levels.items())]
    return found


# --- pairs ------------------------------------------------------------------------------------------------------


def test_speedup_is_fp32_over_the_other_dtype() -> None:
    table = shown(grid())["_speedup"]
    medium = row(table, model_size="medium", pass_type="forward")
    assert medium["bf16_speedup"] == pytest.approx(3.0)
    assert row(table, model_size="small", pass_type="backward")["tf32_speedup"] == pytest.approx(2.0)


def test_a_speedup_is_as_uncertain_as_both_medians() -> None:
    record, reference = cell("small", "bf16"), cell("small", "fp32")
    both = [t.summary(one, "forward_ms") for one in (record, reference)]
    found = row(shown([reference, record])["_speedup"], pass_type="forward")
    assert found["bf16_speedup_spread"] == pytest.approx(20 / 16 * sum(one.iqr / one.median for one in both))


@pytest.mark.parametrize(
    ("status", "said"), [("oom", "fp32: oom"), ("not_run", "fp32: not_run"), (None, "fp32: not planned")]
)
def test_a_row_without_partner_says_why(status: str | None, said: str) -> None:
    fp32 = [cell("small", "fp32", status=status)] if status else []
    tables = shown([*fp32, cell("small", "bf16"), *grid(sizes=("medium",))])
    side = row(tables["_speedup"], model_size="small", pass_type="forward")
    assert side["bf16_speedup"] == said and side["fp32_ms"] == (status or "not planned") and side["status"] == "ok"


def test_flags_side_by_side_name_the_dtype_that_they_are_of() -> None:
    hot, failed = (
        cell("small", "tf32", flags=["throttled 45 % of the time"]),
        cell("small", "fp16", status="oom", flags=["x"]),
    )
    cells = [cell("small", "fp32"), hot, cell("small", "bf16"), failed]
    found = row(shown(cells)["_speedup"], model_size="small", pass_type="forward")
    assert found["flags"] == "tf32: throttled 45 % of the time"


def test_a_partner_that_failed_later_still_gives_what_it_had() -> None:
    fp32 = cell("small", "fp32")
    fp32.status, fp32.reason = "oom", "asked for much"
    del fp32.samples["forward_backward_ms"]
    table = shown([fp32, cell("small", "bf16")])["_speedup"]
    assert row(table, pass_type="forward")["bf16_speedup"] == pytest.approx(1.25)
    assert row(table, pass_type="forward+backward")["bf16_speedup"] == "fp32: oom"


def test_cells_that_did_not_run_are_folded(tmp_path: Any) -> None:
    lacking = [
        cell(size, dtype, status="unsupported", values={"before_start": True}) for size in SIZES for dtype in FORWARD
    ]
    for record in lacking:
        record.factors["device"] = "other"
    for name, table in shown([*grid(), *lacking]).items():
        t.write(table, tmp_path)
        text = markdown_tables.to_markdown(tmp_path, table.id)
        assert sum("unsupported" in line for line in text.splitlines() if line.startswith("|")) == 1, name


def test_the_context_with_most_dtypes_is_shown() -> None:
    cells = [cell("small", "fp32", 1024), cell("medium", "fp32", 1024), *grid(), cell("small", "bf16", 128)]
    assert rows.fullest_context(cells) == 512
    many = [cell(size, "fp32", 1024) for size in SIZES]
    assert rows.fullest_context([*many, cell("small", "fp32"), cell("small", "bf16")]) == 512
    assert rows.fullest_context([cell("small", "fp32", n) for n in (128, 256)]) == 256
    assert rows.fullest_context([cell("small", "fp32", 128), cell("small", "fp32", 256, status="oom")]) == 128
    assert rows.fullest_context([cell("small", "fp32", 128, status="oom")]) == 128
    assert rows.fullest_context([]) is None


# --- the shapes of write-ups --------------------------------------------------------------------------------------


def test_columns_are_those_of_the_write_ups() -> None:
    tables = shown(grid())
    passes, sizes = (list(tables[name].frame.columns) for name in ("_passes", "_speedup"))
    assert passes[:4] == ["model_size", "precision", "pass_type", "avg_time_ms"]
    assert sizes[:6] == ["model_size", "pass_type", "fp32_ms", "tf32_ms", "bf16_ms", "fp16_ms"]
    assert set(tables["_passes"].frame["pass_type"]) == {"forward", "backward", "forward+backward"}
    mean = row(tables["_passes"], model_size="large", precision="bf16", pass_type="forward+backward")["avg_time_ms"]
    assert mean == pytest.approx(90.0)


def test_published_times_stand_beside_the_cells_that_they_are_of() -> None:
    tables = shown(grid())
    found = row(tables["_passes"], model_size="small", precision="bf16", pass_type="forward")
    assert found["ms_brandon-snider"] == 22.008 and found["ms_cs336-writeup-002"] == "none"
    both = row(tables["_passes"], model_size="small", precision="fp16", pass_type="forward+backward")
    assert both["ms_cs336-writeup-004"] == 40.442
    side = row(tables["_speedup"], model_size="small", pass_type="forward+backward")
    assert (
        side["bf16_speedup_cs336-writeup-002"] == pytest.approx(0.89) and side["bf16_speedup_cs336-writeup-004"] == 2.25
    )
    other = shown([cell(size, dtype, seq_len=256) for size in SIZES for dtype in ("fp32", "bf16")])
    assert set(other["_passes"].frame["ms_brandon-snider"]) == {"none"}


def test_words_of_sources_are_kept() -> None:
    found = row(shown([cell("large", "fp32")])["_passes"], pass_type="forward+backward")
    assert found["ms_cs336-writeup-004"] == 492.850
    levels = {"size": "xl", "dtype": "fp16", "seq_len": 512}
    reference = rows.published_ms("cs336-writeup-004", levels, "forward_backward_ms")
    assert reference is not None and reference.text == "N/A"
    assert rows.published_speedup("cs336-writeup-004", levels, "fp16", "forward_backward_ms") is None


# --- how busy the device is ---


def test_how_busy_the_device_is_stands_in_the_csv() -> None:
    table = shown(grid(), traced("small", "tf32", 5.0), traced("small", "bf16", 4.0, "cpu"))["_speedup"]
    small = row(table, model_size="small", pass_type="forward+backward")
    assert small["tf32_busy_percent"] == pytest.approx(50.0) and small["bf16_busy_percent"] == "not traced"
    assert row(table, model_size="small", pass_type="backward")["tf32_busy_percent"] == pytest.approx(50.0)


def test_the_line_below_the_figure_is_of_the_cells_that_it_shows() -> None:
    measured = {"end_to_end": grid(), "nsys_profile": [traced("small", "tf32", 5.0)]}
    assert presenting._shown("mixed_precision", measured, SHOWN.drawn_of) == measured["end_to_end"]
    assert len(presenting._shown("another", measured, ())) == len(grid()) + 1, "else of all that is read"


# --- figure -------------------------------------------------------------------------------------------------------


def drawn(cells: list[Record]) -> Any:
    canvas = plt.figure()
    drawings.by_size(canvas, shown(cells)["_speedup"].frame)
    return canvas


def test_a_line_a_dtype_and_why_a_size_has_none() -> None:
    cells = [r for r in grid() if (r.factors["size"], r.factors["dtype"]) != ("large", "fp32")]
    canvas = drawn([*cells, cell("large", "fp32", status="oom")])
    forward = canvas.axes[0]
    lines = {
        line.get_label(): list(line.get_ydata()) for line in forward.get_lines() if line.get_label() in ("TF32", "BF16")
    }
    assert lines["TF32"] == pytest.approx([2.0, 3.0]) and lines["BF16"] == pytest.approx([1.25, 3.0])
    assert [text.get_text() for text in forward.texts] == ["fp32: oom"]
    assert forward.get_ylim()[0] == 0 and forward.get_ylim()[1] > 3
    plt.close(canvas)


def test_without_a_pair_the_axes_say_so() -> None:
    canvas = drawn(grid(("fp32",)))
    assert {text.get_text() for axes in canvas.axes for text in axes.texts} == {"no size has fp32 and another dtype"}
    plt.close(canvas)
