"""Ceilings and rooflines: the formulas, which ceiling a rate is held against, and what is said of it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import unmeasured
from matplotlib import pyplot as plt
from workspace import ROOT

from perfscribe import ceilings, plan, records
from perfscribe.attention import backends
from perfscribe.counters import flops, roofline
from perfscribe.counters.parameters import transformer_parameters
from perfscribe.experiments.roofline import answers as roofline_answers
from perfscribe.experiments.roofline import drawings, rows
from perfscribe.experiments.roofline import present as rooflines
from perfscribe.models.shapes import SIZES
from perfscribe.records import Record

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


def test_peaks_are_told_with_their_source_or_that_there_is_none() -> None:
    (note,) = ceilings.peak_notes([product(1.0, 64)])
    assert note.startswith(
        "Peaks, dense: fp32 67.0, tf32 495, bf16 989, fp16 989 TFLOP/s (NVIDIA H200: NVIDIA H100 and"
    )
    without = Record("end_to_end", {}, "ok", "", "measured")
    assert ceilings.peak_notes([without]) == ["Peaks, dense: none known for the processor, hence no MFU."]
    assert ceilings.peak_notes([]) == []


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


def test_shares_of_a_bound_are_no_finer_than_times_spread() -> None:
    level = {"work": rows.STEP, "name": "small", "pass": "step", "dtype": "fp32", "seq_len": 256, "head_dim": "model's"}
    level |= {"bound_by": "memory", "intensity": 4.0, "ridge": 12.0}
    shares = [(1.604, 2.51), (58.93, 0.4)]
    frame = pd.DataFrame([level | {"share_percent": one, "share_percent_spread": wide} for one, wide in shares])
    assert "of which they reach 1.6 to 58.9 %, most" in roofline_answers.bounds(frame)


def test_tritons_fp32_is_held_against_a_third_of_tf32() -> None:
    cells = [product(1.4, 8192, "flash_benchmarking", dtype=dtype) for dtype in ("fp32", "tf32")]
    site = {
        "end_to_end": [],
        "flash_benchmarking": [*cells, flash("triton", 4096, 1.0, "fp32"), flash("eager", 4096, 1.0, "fp32")],
    }
    by_name = roofline_table(site).ok.groupby("name")["peak_tflop_per_s"].first()
    assert by_name["Triton (ours)"] == pytest.approx(by_name["PyTorch, eager"] / 3)


def test_the_sentence_on_the_roofline() -> None:
    (finding,) = rooflines.findings({rooflines.TABLES[0]: roofline_table()})
    assert finding.verdict == "answered" and "Attention, N × N stored: " in finding.text
    assert "bound by memory" in finding.text and "bound by compute" in finding.text
    bare = {name: [Record(**{**vars(one), "gpu": ""}) for one in cells] for name, cells in SITE.items()}
    (finding,) = rooflines.findings({rooflines.TABLES[0]: roofline_table(bare)})
    assert finding.verdict == "cannot tell"


def without_heads(head_dim: int, seq_len: int = 4096) -> Record:
    factors = {"device": "cuda", "implementation": "eager", "dtype": "fp32", "seq_len": seq_len, "head_dim": head_dim}
    samples = {"forward_ms": [[2.0] * 3], "backward_ms": [[4.0] * 3]}
    return Record("attention", factors | {"batch": 8}, "ok", "", "measured", samples=samples, gpu=H200)


def test_attention_stands_there_at_its_narrowest_and_its_widest() -> None:
    site = {"attention": [without_heads(d, n) for n in (1024, 4096) for d in (16, 32, 128)]}
    table = roofline_table(site)
    assert set(table.ok["head_dim"]) == {16, 128} and set(table.ok["seq_len"]) == {1024, 4096}
    assert {row["head_dim"]: row["bound_by"] for _, row in table.ok.iterrows()} == {16: "memory", 128: "compute"}
    (finding,) = rooflines.findings({table.id: table})
    assert "4 rows bound by memory" in finding.text and "at length 4096, d 128 (" in finding.text
    canvas = plt.figure()
    drawings.draw(canvas, table.ok)
    (axes,) = canvas.axes
    assert {"eager, no heads, d = 16, forward", "eager, no heads, d = 128, forward"} <= {
        text.get_text() for text in axes.texts
    }
    assert all(len(line.get_xdata()) == 2 for line in axes.lines), "no line from one d to another"
    plt.close(canvas)


def test_notes_and_caption_tell_of_what_is_there() -> None:
    bare = roofline_table({"attention": [without_heads(16)]})
    (figure,) = rooflines.figures({bare.id: bare})
    assert rooflines.STEP_NOTE not in bare.notes and rooflines.TRITON_NOTE not in bare.notes
    assert "Triton" not in figure.caption and "Discs: forward passes; triangles" in figure.caption
    full = roofline_table({**SITE, "flash_benchmarking": [flash("triton", 4096, 1.0, "fp32")]})
    (figure,) = rooflines.figures({full.id: full})
    assert {rooflines.STEP_NOTE, rooflines.ATTENTION_NOTE, rooflines.TRITON_NOTE} <= set(full.notes)
    assert "Triton's fp32" in figure.caption and "Discs: forward passes and steps;" in figure.caption


@pytest.mark.parametrize("site", [SITE, {"end_to_end": SITE["end_to_end"], "flash_benchmarking": []}])
def test_the_figure_draws_what_is_known(site: Any) -> None:
    canvas = plt.figure()
    drawings.draw(canvas, roofline_table(site).ok)
    texts = [text.get_text() for axes in canvas.axes for text in axes.texts]
    assert "step, small" in texts and "peak, data sheet" in texts
    assert ("peak, measured" in texts) == (site is SITE)
    plt.close(canvas)


def test_the_passes_of_an_implementation_share_a_colour_in_every_panel() -> None:
    canvas = plt.figure()
    drawings.draw(canvas, roofline_table().ok)
    drawn = {line.get_color() for axes in canvas.axes for line in axes.lines} - {drawings.GREY}
    names = {rows.STEP, "Triton (ours)", "PyTorch, eager", backends.named("sdpa_flash").title}
    assert len(drawn) == len(names)
    markers = {line.get_marker() for axes in canvas.axes for line in axes.lines if line.get_color() != drawings.GREY}
    assert markers == {"o", "^"}
    for axes in canvas.axes:
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        assert all(left <= text.xy[0] <= right and low <= text.xy[1] <= high for text in axes.texts)
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
