"""end_to_end: rates, and published times beside ours; precisions side by side."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib import pyplot as plt

from perfscribe.experiments.end_to_end import show
from perfscribe.records.records import Record
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
    """A cell whose three samples a pass differ by a thousandth."""
    factors = {"device": "cuda", "size": size, "seq_len": seq_len, "dtype": dtype, "batch": 4, "warmup_steps": 5}
    forward = FORWARD[dtype][size]
    times = {"forward": forward, "backward": 2 * forward, "forward_backward": 3 * forward}
    times |= {"forward_no_grad": forward, "optimizer": 5.0, "full_step": 40.0}
    samples = {f"{name}_ms": [[0.999 * ms, ms, 1.001 * ms]] for name, ms in times.items()} if status == "ok" else {}
    reason, values = ("", {"gpu_name": "NVIDIA H200"}) if status == "ok" else ("why", {})
    return Record("end_to_end", factors, status, reason, "measured", samples=samples, values=values, **more)


def grid() -> list[Record]:
    return [cell(size, dtype) for size in SIZES for dtype in FORWARD]


def shown(cells: list[Record]) -> list[Table]:
    return show.tables({"end_to_end": cells})


def row(table: Table, **levels: Any) -> dict[str, Any]:
    (found,) = [r for r in table.frame.to_dict("records") if all(r[name] == level for name, level in levels.items())]
    return found


def speedups(cells: list[Record], size: str = "small", pass_type: str = "forward") -> dict[str, Any]:
    return row(shown(cells)[3], model_size=size, pass_type=pass_type)


def test_rates_and_published_times() -> None:
    one = cell("small", "tf32", seq_len=128)
    one.samples["forward_backward_ms"] = [[31.0] * 3]
    script, rates, *_ = (table.frame.iloc[0] for table in shown([one]))
    assert script["backward_by_difference_ms"] == 21 and script["forward_ms_brandon-snider"] > 0
    assert rates["tokens_per_s"] == pytest.approx(4 * 128 / 0.04)
    assert rates["mfu_percent"] == pytest.approx(100 * rates["tflop_per_s"] / 494.7)
    assert rates["share_of_product_percent"] == "no product measured"


def test_speedup_is_fp32_over_the_other_dtype_and_as_uncertain_as_both() -> None:
    assert speedups(grid(), "medium")["bf16_speedup"] == pytest.approx(3.0)
    assert speedups(grid(), "small", "backward")["tf32_speedup"] == pytest.approx(2.0)
    both = [t.summary(cell("small", dtype), "forward_ms") for dtype in ("fp32", "bf16")]
    expected = 20 / 16 * sum(one.iqr / one.median for one in both)
    assert speedups(grid())["bf16_speedup_spread"] == pytest.approx(expected)


@pytest.mark.parametrize("status", ["oom", None])
def test_a_row_without_partner_says_why(status: str | None) -> None:
    fp32 = [cell("small", "fp32", status=status)] if status else []
    side = speedups([*fp32, cell("small", "bf16")])
    assert side["bf16_speedup"] == f"fp32: {status or 'not planned'}"
    assert side["fp32_ms"] == (status or "not planned") and side["status"] == "ok"
    assert side["tf32_speedup"] == "not planned"


def test_flags_side_by_side_name_the_dtype_that_they_are_of() -> None:
    hot = cell("small", "tf32", flags=["throttled 45 % of the time"])
    failed = cell("small", "fp16", status="oom", flags=["x"])
    found = speedups([cell("small", "fp32"), hot, cell("small", "bf16"), failed])
    assert found["flags"] == "tf32: throttled 45 % of the time" and found["fp16_speedup"] == "oom"


def test_a_partner_that_failed_later_still_gives_what_it_had() -> None:
    fp32 = cell("small", "fp32")
    fp32.status, fp32.reason = "oom", "asked for much"
    del fp32.samples["forward_backward_ms"]
    cells = [fp32, cell("small", "bf16")]
    assert speedups(cells)["bf16_speedup"] == pytest.approx(1.25)
    assert speedups(cells, pass_type="forward+backward")["bf16_speedup"] == "fp32: oom"


def test_cells_that_did_not_run_have_their_status() -> None:
    cells = [cell("small", dtype, status="unsupported") for dtype in FORWARD]
    assert {status for table in shown(cells) for status in table.frame["status"]} == {"unsupported"}


def test_the_context_with_most_dtypes_is_shown() -> None:
    one = [cell(size, "fp32", 1024) for size in SIZES]
    assert show.fullest_context([*one, cell("small", "fp32"), cell("small", "bf16")]) == 512
    assert show.fullest_context([cell("small", "fp32", n) for n in (128, 256)]) == 256
    assert show.fullest_context([cell("small", "fp32", 128), cell("small", "fp32", 256, status="oom")]) == 128
    assert show.fullest_context([cell("small", "fp32", 128, status="oom")]) == 128
    assert show.fullest_context([]) is None


def test_published_times_stand_beside_the_cells_that_they_are_of() -> None:
    passes = shown(grid())[2]
    found = row(passes, model_size="small", precision="bf16", pass_type="forward")
    assert found["ms_brandon-snider"] == 22.008 and found["ms_cs336-writeup-002"] == "none"
    assert found["avg_time_ms"] == pytest.approx(16.0)
    both = row(passes, model_size="small", precision="fp16", pass_type="forward+backward")
    assert both["ms_cs336-writeup-004"] == 40.442
    side = speedups(grid(), pass_type="forward+backward")
    assert side["bf16_speedup_cs336-writeup-002"] == pytest.approx(0.89)
    assert side["bf16_speedup_cs336-writeup-004"] == 2.25
    assert set(shown([cell("small", "bf16", seq_len=256)])[2].frame["ms_brandon-snider"]) == {"none"}
    # a source that prints N/A has no speed-up
    levels = {"size": "xl", "dtype": "fp16", "seq_len": 512}
    assert show.published_speedup("cs336-writeup-004", levels, "fp16", "forward_backward_ms") is None


def drawn(cells: list[Record]) -> Any:
    canvas = plt.figure()
    show.draw_speedups(canvas, shown(cells)[3].frame)
    plt.close(canvas)
    return canvas


def test_a_line_a_dtype_and_why_a_size_has_none() -> None:
    cells = [r for r in grid() if (r.factors["size"], r.factors["dtype"]) != ("large", "fp32")]
    forward = drawn([*cells, cell("large", "fp32", status="oom")]).axes[0]
    lines = {line.get_label(): list(line.get_ydata()) for line in forward.get_lines()}
    assert lines["TF32"] == pytest.approx([2.0, 3.0]) and lines["BF16"] == pytest.approx([1.25, 3.0])
    assert [text.get_text() for text in forward.texts] == ["fp32: oom"]
    alone = drawn([cell("small", "fp32")])
    assert {text.get_text() for axes in alone.axes for text in axes.texts} == {"no size has fp32 and another dtype"}
