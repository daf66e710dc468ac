"""Ceilings and rooflines: the formulas, and which ceiling a rate is held against."""

from __future__ import annotations

from typing import Any

import pytest
import unmeasured
from matplotlib import pyplot as plt
from workspace import ROOT

from perfscribe.analytic import flops, roofline
from perfscribe.analytic.parameters import transformer_parameters
from perfscribe.analytic.shapes import SIZES
from perfscribe.experiments.roofline import drawings, rows
from perfscribe.experiments.roofline import show as rooflines
from perfscribe.plan import plan
from perfscribe.records import records
from perfscribe.records.records import Record
from perfscribe.show import ceilings

H200 = "NVIDIA H200"

# --- formulas ---------------------------------------------------------------------------------------------------


def test_the_lower_ceiling_bounds() -> None:
    low, high = roofline.bound(10, 1e15, 5e12), roofline.bound(1000, 1e15, 5e12)
    assert (low.flop_per_s, low.by, low.ridge) == (5e13, "memory", 200) and (high.flop_per_s, high.by) == (
        1e15,
        "compute",
    )
    with pytest.raises(ValueError, match="a roofline needs values above 0"):
        roofline.bound(0, 1, 1)


def test_bytes_of_attention() -> None:
    # batch 2, 3 heads, N = 8, d = 4, bf16: a tensor of 2·3·8·4·2 = 384 bytes, a matrix of 2·3·8·8·2 = 768
    assert roofline.fused_attention_bytes(2, 3, 8, 4, "bf16") == {"forward": 4 * 384, "backward": 8 * 384}
    assert roofline.eager_attention_bytes(2, 3, 8, 4, "bf16") == {
        "forward": 4 * 384 + 4 * 768,
        "backward": 7 * 384 + 7 * 768,
    }


def test_tf32_moves_as_many_bytes_as_fp32() -> None:
    whole, tf32, half = (roofline.eager_attention_bytes(2, 3, 8, 4, dtype) for dtype in ("fp32", "tf32", "bf16"))
    assert whole == tf32 == {name: 2 * size for name, size in half.items()}


def test_bytes_of_a_step_hold_the_state_and_what_is_saved() -> None:
    shape = SIZES["nano"]
    of_state = 40 * transformer_parameters(shape)
    short, long = (roofline.step_bytes(shape, 4, length, "fp32", "cpu") for length in (16, 32))
    assert of_state < short < long
    # what is saved grows with length, matrices of attention with its square: the state stays
    assert 2 * (short - of_state) < long - of_state < 4 * (short - of_state)


# --- ceilings ---------------------------------------------------------------------------------------------------


def product(ms: float, size: int, experiment: str = "calibration", **more: Any) -> Record:
    factors = {
        "workload": ceilings.PRODUCTS[experiment],
        "device": "cuda",
        "dtype": "bf16",
        "matrix_size": size,
        **more,
    }
    return Record(experiment, factors, "ok", "", "measured", samples={"product_ms": [[ms] * 3]}, gpu=H200)


def copy(ms: float, size_mib: int, operation: str = "copy") -> Record:
    factors = {"workload": "memory", "device": "cuda", "operation": operation, "size_mib": size_mib}
    values = {"bytes": 10**9}
    return Record(
        "calibration", factors, "ok", "", "measured", samples={"time_ms": [[ms] * 3]}, values=values, gpu=H200
    )


def test_the_best_product_and_the_largest_copy_are_the_ceilings() -> None:
    known = ceilings.Ceilings(
        {
            "calibration": [product(2.0, 4096), copy(0.1, 256), copy(0.3, 1024), copy(0.25, 1024, "triad")],
            "flash_benchmarking": [product(1.4, 8192, "flash_benchmarking")],
        }
    )
    peak, memory = known.product("cuda", "bf16", H200), known.memory("cuda", H200)
    assert peak is not None and memory is not None
    assert peak.per_s == pytest.approx(2 * 8192**3 / 1.4e-3) and (peak.by, peak.detail) == (
        "measured",
        "product of 8192 rows",
    )
    assert memory.per_s == pytest.approx(4e12) and memory.detail == "triad of 1024 MiB"


def test_the_data_sheet_stands_in_on_a_gpu_that_has_one() -> None:
    known = ceilings.Ceilings({})
    peak, memory = known.product("cuda", "tf32", H200), known.memory("cuda", H200)
    assert peak is not None and (peak.per_s, peak.by) == (494.7e12, "data sheet")
    assert memory is not None and memory.per_s == 4.8e12 and "H200" in memory.detail
    assert known.product("cpu", "fp32", H200) is None and known.memory("cpu", H200) is None
    assert known.product("cuda", "fp32", "Some GPU") is None and known.memory("cuda", "") is None


# --- the plan ---------------------------------------------------------------------------------------------------


def planned(**enabled: bool) -> plan.Plan:
    raw = {**unmeasured.raw_config(), "experiments": {name: {"enabled": on} for name, on in enabled.items()}}
    return plan.build(raw, "tiny", ROOT)


def test_a_roofline_is_shown_without_a_calibration_and_reads_it_where_there_is_one() -> None:
    every = ("attention", "calibration", "end_to_end", "flash_benchmarking")
    assert planned().presentations["roofline"].reads == every
    without = planned(calibration=False, end_to_end=False)
    assert without.presentations["roofline"].reads == ("attention", "flash_benchmarking")
    assert without.units["present-roofline"]["reads"] == ["attention", "flash_benchmarking"]
    assert "roofline" not in planned(attention=False).presentations


# --- the roofline -----------------------------------------------------------------------------------------------


def step(size: str, seq_len: int, ms: float, dtype: str = "bf16", status: str = "ok") -> Record:
    factors = {"device": "cuda", "size": size, "seq_len": seq_len, "dtype": dtype, "batch": 4}
    samples = {"full_step_ms": [[ms] * 3]} if status == "ok" else {}
    return Record("end_to_end", factors, status, "", "measured", samples=samples, gpu=H200)


def flash(name: str, seq_len: int, ms: float, dtype: str = "bf16", status: str = "ok") -> Record:
    factors = {"workload": "grid", "device": "cuda", "seq_len": seq_len, "head_dim": 64, "dtype": dtype}
    factors |= {"batch": 1, "heads": 1, "causal": True, "implementation": name}
    samples = {"forward_ms": [[ms] * 3], "backward_ms": [[2.5 * ms] * 3]} if status == "ok" else {}
    timers = {name: "CUDA graph replay" for name in samples}
    return Record("flash_benchmarking", factors, status, "", "measured", samples=samples, timers=timers, gpu=H200)


SITE = {
    "end_to_end": [step("small", 128, 50.0), step("small", 512, 70.0), step("large", 512, 1.0, status="oom")],
    "flash_benchmarking": [
        product(1.4, 8192, "flash_benchmarking"),
        *(flash(name, n, 1e-8 * n * n) for name in ("triton", "eager") for n in (128, 1024, 4096)),
        flash("sdpa_flash", 128, 0.1),
        flash("sdpa_flash", 4096, 0.1, status="oom"),
    ],
}


def roofline_table(site: Any = SITE) -> Any:
    (table,) = rooflines.tables(site)
    return table


def test_rows_are_steps_at_their_longest_and_attention_at_both_ends() -> None:
    frame = roofline_table().frame
    steps = frame[frame["work"] == rows.STEP]
    assert [(row["name"], row["seq_len"], row["status"]) for _, row in steps.iterrows()] == [
        ("small", 512, "ok"),
        ("large", 512, "oom"),
    ]
    ours = frame[frame["name"] == "Triton (ours)"]
    assert list(ours["seq_len"]) == [128, 128, 4096, 4096] and set(ours["work"]) == {rows.FUSED}
    assert list(frame[frame["name"].str.contains("SDPA")]["status"]) == ["ok", "ok", "oom", "oom"]


def test_a_row_of_the_roofline() -> None:
    frame = roofline_table().ok
    (row,) = (
        r
        for _, r in frame.iterrows()
        if r["name"] == "PyTorch, eager" and r["seq_len"] == 4096 and r["pass"] == "forward"
    )
    flop = flops.attention_forward_flop(1, 1, 4096, 64, causal=False)  # eager computes what a mask hides
    moved = 4 * 4096 * 64 * 2 + 4 * 4096 * 4096 * 2
    assert row["intensity"] == pytest.approx(flop / moved) and row["bound_by"] == "memory"
    assert row["bound_tflop_per_s"] == pytest.approx(flop / moved * 4.8)
    rate = flop / (1e-8 * 4096**2 * 1e-3) / 1e12
    assert row["share_percent"] == pytest.approx(100 * rate / row["bound_tflop_per_s"])
    assert row["peak_by"] == "measured: product of 8192 rows" and row["memory_by"].startswith("data sheet: NVIDIA H200")


def test_tritons_fp32_is_held_against_a_third_of_tf32() -> None:
    cells = [product(1.4, 8192, "flash_benchmarking", dtype=dtype) for dtype in ("fp32", "tf32")]
    site = {
        "end_to_end": [],
        "flash_benchmarking": [*cells, flash("triton", 4096, 1.0, "fp32"), flash("eager", 4096, 1.0, "fp32")],
    }
    by_name = roofline_table(site).ok.groupby("name")["peak_tflop_per_s"].first()
    assert by_name["Triton (ours)"] == pytest.approx(by_name["PyTorch, eager"] / 3)


def without_heads(head_dim: int, seq_len: int = 4096) -> Record:
    factors = {"device": "cuda", "implementation": "eager", "dtype": "fp32", "seq_len": seq_len, "head_dim": head_dim}
    samples = {"forward_ms": [[2.0] * 3], "backward_ms": [[4.0] * 3]}
    return Record("attention", factors | {"batch": 8}, "ok", "", "measured", samples=samples, gpu=H200)


def test_attention_stands_there_at_its_narrowest_and_its_widest() -> None:
    site = {"attention": [without_heads(d, n) for n in (1024, 4096) for d in (16, 32, 128)]}
    table = roofline_table(site)
    assert set(table.ok["head_dim"]) == {16, 128} and set(table.ok["seq_len"]) == {1024, 4096}
    assert {row["head_dim"]: row["bound_by"] for _, row in table.ok.iterrows()} == {16: "memory", 128: "compute"}


@pytest.mark.parametrize("site", [SITE, {"end_to_end": SITE["end_to_end"], "flash_benchmarking": []}])
def test_the_figure_draws_points_and_a_ceiling_a_dtype(site: Any) -> None:
    canvas = plt.figure()
    drawings.draw(canvas, roofline_table(site).ok)
    (axes,) = canvas.axes
    (ceiling,) = (line for line in axes.lines if line.get_linestyle() == "-")
    assert len(ceiling.get_xdata()) == 3 and max(ceiling.get_ydata()) == pytest.approx(
        785.3 if site is SITE else 989, rel=1e-3
    )
    plt.close(canvas)


def test_records_keep_what_was_watched() -> None:
    row = records.make(
        {"experiment": "e", "factors": {}, "status": "ok", "watch": {"energy_j": 5.0}, "fingerprint": ""}
    )
    (merged,) = records.merge_rounds([row])
    assert merged.watch == [{"energy_j": 5.0}]


# --- links ------------------------------------------------------------------------------------------------------


def test_collectives_stand_beside_the_slowest_link_and_the_data_sheet() -> None:
    def link(ms: float) -> Record:
        factors = {"workload": "link", "source_gpu": 0, "target_gpu": 1, "size_mib": 1024}
        return Record("calibration", factors, "ok", "", "measured", {"time_ms": [[ms]]}, values={"bytes": 10**9})

    def collective(backend: str, links: str | None, transport: str = "default") -> Record:
        factors = {"backend": backend, "transport": transport}
        return Record("all_reduce", factors, "ok", "", "measured", values={"links": links} if links else {}, gpu=H200)

    nccl, gloo, shm = collective("nccl", "NV18"), collective("gloo", None), collective("nccl", "NV18", "shm")
    site = {"calibration": [link(2.5), link(4.0)]}
    measured, printed = ceilings.of_links(site, [nccl, gloo], lambda record: 225.0)
    assert (measured.get(nccl), printed.get(nccl)) == (pytest.approx(90), pytest.approx(50))
    assert {measured.get(one) for one in (gloo, shm)} == {"not over NVLink"}
    (measured, _) = ceilings.of_links({}, [nccl], lambda record: 225.0)
    assert measured.get(nccl) == "no link measured"
    assert ceilings.of_links(site, [gloo], lambda record: 1.0) == []
