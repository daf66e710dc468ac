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
from perfscribe.experiments.calibration import roofline as shown
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.show import ceilings

H200 = "NVIDIA H200"

# --- formulas ---------------------------------------------------------------------------------------------------


def test_the_lower_ceiling_bounds() -> None:
    low, high = roofline.bound(10, 1e15, 5e12), roofline.bound(1000, 1e15, 5e12)
    assert (low.flop_per_s, low.by, low.ridge) == (5e13, "memory", 200)
    assert (high.flop_per_s, high.by) == (1e15, "compute")
    with pytest.raises(ValueError, match="a roofline needs values above 0"):
        roofline.bound(0, 1, 1)


def test_bytes_of_attention() -> None:
    # batch 2, 3 heads, N = 8, d = 4, bf16: a tensor of 2·3·8·4·2 = 384 bytes, a matrix of 2·3·8·8·2 = 768
    assert roofline.fused_attention_bytes(2, 3, 8, 4, "bf16") == {"forward": 4 * 384, "backward": 8 * 384}
    eager = roofline.eager_attention_bytes(2, 3, 8, 4, "bf16")
    assert eager == {"forward": 4 * 384 + 4 * 768, "backward": 7 * 384 + 7 * 768}
    for dtype in ("fp32", "tf32"):
        assert roofline.eager_attention_bytes(2, 3, 8, 4, dtype) == {name: 2 * size for name, size in eager.items()}


def test_bytes_of_a_step_hold_the_state_and_what_is_saved() -> None:
    shape = SIZES["nano"]
    of_state = 40 * transformer_parameters(shape)
    short, long = (roofline.step_bytes(shape, 4, length, "fp32", "cpu") for length in (16, 32))
    # what is saved grows with length, matrices of attention with its square: the state stays
    assert of_state < short < long and 2 * (short - of_state) < long - of_state < 4 * (short - of_state)


# --- ceilings ---------------------------------------------------------------------------------------------------


def measured(
    experiment: str, samples: dict[str, float], values: dict[str, Any] | None = None, **factors: Any
) -> Record:
    factors = {"device": "cuda", **factors}
    times = {name: [[ms] * 3] for name, ms in samples.items()}
    return Record(experiment, factors, "ok", "", "measured", times, values=values or {}, gpu=H200)


def product(ms: float, size: int, experiment: str = "calibration", dtype: str = "bf16") -> Record:
    kind = ceilings.PRODUCTS[experiment]
    return measured(experiment, {"product_ms": ms}, workload=kind, dtype=dtype, matrix_size=size)


def copy(ms: float, size_mib: int, operation: str = "copy") -> Record:
    factors = {"workload": "memory", "operation": operation, "size_mib": size_mib}
    return measured("calibration", {"time_ms": ms}, {"bytes": 10**9}, **factors)


def test_the_best_product_and_the_largest_copy_are_the_ceilings() -> None:
    known = ceilings.Ceilings(
        {
            "calibration": [product(2.0, 4096), copy(0.1, 256), copy(0.3, 1024), copy(0.25, 1024, "triad")],
            "flash_benchmarking": [product(1.4, 8192, "flash_benchmarking")],
        }
    )
    best = ceilings.Ceiling(pytest.approx(2 * 8192**3 / 1.4e-3), "measured", "product of 8192 rows")
    assert known.product("cuda", "bf16", H200) == best
    assert known.memory("cuda", H200) == ceilings.Ceiling(pytest.approx(4e12), "measured", "triad of 1024 MiB")


def test_the_data_sheet_stands_in_on_a_gpu_that_has_one() -> None:
    known = ceilings.Ceilings({})
    peak, memory = known.product("cuda", "tf32", H200), known.memory("cuda", H200)
    assert peak is not None and (peak.per_s, peak.by) == (494.7e12, "data sheet")
    assert memory is not None and memory.per_s == 4.8e12 and "H200" in memory.detail
    assert known.product("cpu", "fp32", H200) is None and known.memory("cpu", H200) is None
    assert known.product("cuda", "fp32", "Some GPU") is None and known.memory("cuda", "") is None


# --- the roofline -----------------------------------------------------------------------------------------------


def test_the_roofline_reads_what_is_measured() -> None:
    raw = {**unmeasured.raw_config(), "experiments": {"end_to_end": {"enabled": False}}}
    assert plan.build(raw, "tiny", ROOT).presentations["calibration"].reads == ("attention", "flash_benchmarking")


def step(size: str, seq_len: int, ms: float) -> Record:
    return measured("end_to_end", {"full_step_ms": ms}, size=size, seq_len=seq_len, dtype="bf16", batch=4)


def flash(name: str, seq_len: int, ms: float, dtype: str = "bf16") -> Record:
    factors = {"workload": "grid", "seq_len": seq_len, "head_dim": 64, "dtype": dtype, "batch": 1, "heads": 1}
    factors |= {"causal": True, "implementation": name}
    return measured("flash_benchmarking", {"forward_ms": ms, "backward_ms": 2.5 * ms}, **factors)


def out_of_memory(record: Record) -> Record:
    record.status, record.samples = "oom", {}
    return record


SITE = {
    "end_to_end": [step("small", 128, 50.0), step("small", 512, 70.0), out_of_memory(step("large", 512, 1.0))],
    "flash_benchmarking": [
        product(1.4, 8192, "flash_benchmarking"),
        *(flash(name, n, 1e-8 * n * n) for name in ("triton", "eager") for n in (128, 1024, 4096)),
        flash("sdpa_flash", 128, 0.1),
        out_of_memory(flash("sdpa_flash", 4096, 0.1)),
    ],
}


def test_rows_are_steps_at_their_longest_and_attention_at_both_ends() -> None:
    frame = shown.table("cs336.roofline", SITE).frame
    steps = frame[frame["work"] == shown.STEP]
    assert steps[["name", "seq_len", "status"]].to_numpy().tolist() == [["small", 512, "ok"], ["large", 512, "oom"]]
    ours = frame[frame["name"] == "Triton (ours)"]
    assert list(ours["seq_len"]) == [128, 128, 4096, 4096] and set(ours["work"]) == {shown.FUSED}
    assert list(frame[frame["name"].str.contains("SDPA")]["status"]) == ["ok", "ok", "oom", "oom"]


def test_a_row_of_the_roofline() -> None:
    frame = shown.table("cs336.roofline", SITE).ok
    row = frame.query("name == 'PyTorch, eager' and seq_len == 4096").iloc[0]
    flop = flops.attention_forward_flop(1, 1, 4096, 64, causal=False)  # eager computes what a mask hides
    moved = 4 * 4096 * 64 * 2 + 4 * 4096 * 4096 * 2
    assert row["pass"] == "forward" and row["intensity"] == pytest.approx(flop / moved) and row["bound_by"] == "memory"
    assert row["bound_tflop_per_s"] == pytest.approx(flop / moved * 4.8)
    rate = flop / (1e-8 * 4096**2 * 1e-3) / 1e12
    assert row["share_percent"] == pytest.approx(100 * rate / row["bound_tflop_per_s"])
    assert row["peak_by"] == "measured: product of 8192 rows" and row["memory_by"].startswith("data sheet: NVIDIA H200")


def test_tritons_fp32_is_held_against_a_third_of_tf32() -> None:
    cells = [product(1.4, 8192, "flash_benchmarking", dtype) for dtype in ("fp32", "tf32")]
    cells += [flash("triton", 4096, 1.0, "fp32"), flash("eager", 4096, 1.0, "fp32")]
    frame = shown.table("cs336.roofline", {"flash_benchmarking": cells}).ok
    by_name = frame.groupby("name")["peak_tflop_per_s"].first()
    assert by_name["Triton (ours)"] == pytest.approx(by_name["PyTorch, eager"] / 3)


@pytest.mark.parametrize(("site", "peak"), [(SITE, 785.3), ({"end_to_end": SITE["end_to_end"]}, 989)])
def test_the_figure_draws_points_and_a_ceiling_a_dtype(site: Any, peak: float) -> None:
    canvas = plt.figure()
    shown.draw(canvas, shown.table("cs336.roofline", site).ok)
    (ceiling,) = (line for line in canvas.axes[0].lines if line.get_linestyle() == "-")
    assert len(ceiling.get_xdata()) == 3 and max(ceiling.get_ydata()) == pytest.approx(peak, rel=1e-3)
    plt.close(canvas)


def test_collectives_stand_beside_the_slowest_link_and_the_data_sheet() -> None:
    def collective(backend: str, links: str | None, transport: str = "default") -> Record:
        factors = {"backend": backend, "transport": transport}
        return Record("all_reduce", factors, "ok", "", "measured", values={"links": links} if links else {}, gpu=H200)

    link = {"workload": "link", "source_gpu": 0, "target_gpu": 1, "size_mib": 1024}
    site = {"calibration": [measured("calibration", {"time_ms": ms}, {"bytes": 10**9}, **link) for ms in (2.5, 4.0)]}
    nccl, gloo, shm = collective("nccl", "NV18"), collective("gloo", None), collective("nccl", "NV18", "shm")
    of_link, of_sheet = ceilings.of_links(site, [nccl, gloo], lambda record: 225.0)
    assert (of_link.get(nccl), of_sheet.get(nccl)) == (pytest.approx(90), pytest.approx(50))
    assert {of_link.get(one) for one in (gloo, shm)} == {"not over NVLink"}
    (of_link, _) = ceilings.of_links({}, [nccl], lambda record: 225.0)
    assert of_link.get(nccl) == "no link measured"
    assert ceilings.of_links(site, [gloo], lambda record: 1.0) == []
