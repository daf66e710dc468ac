"""flash_benchmarking: its cells, its check against float64, what it keeps and its tables."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flash_cells
import pytest
import torch
import unmeasured

from perfscribe.attention import backends
from perfscribe.base.cells import Cell, Unsupported
from perfscribe.base.partial import of_error
from perfscribe.experiments.flash_benchmarking import correctness, kernels, measure, passes, products, rows, show
from perfscribe.instruments import graph_timing
from perfscribe.instruments.timing import CUDA_EVENTS, Timing
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

PROBLEM = {
    "workload": "grid",
    "device": "cpu",
    "seq_len": 96,
    "head_dim": 16,
    "dtype": "fp32",
    "batch": 1,
    "heads": 2,
    "causal": True,
    "implementation": "eager",
    "samples": 3,
}

# --- cells ------------------------------------------------------------------------------------------------------


@cache
def gpu_cells() -> list[Cell]:
    return plan.planned_cells(unmeasured.raw_config(), "flash_benchmarking", "gpu")


def test_the_gpu_grid_is_the_homeworks() -> None:
    grid = [cell for cell in gpu_cells() if cell["workload"] == "grid"]
    full = Counter(cell["implementation"] for cell in grid if cell["dtype"] in ("fp32", "bf16"))
    assert {full[name] for name in ("eager", "triton", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient")} == {80}
    lengths = {cell["seq_len"] for cell in grid if cell["implementation"] == "triton"}
    assert lengths == {2**power for power in range(7, 17)}
    assert {cell["implementation"] for cell in grid if cell["dtype"] == "tf32"} == {"eager", "triton"}
    assert {cell["seq_len"] for cell in grid if cell["implementation"] == "flex"} == {1024, 4096, 16384}
    board = [cell for cell in gpu_cells() if cell["workload"] == "leaderboard"]
    assert {tuple(cell[name] for name in ("heads", "seq_len", "head_dim", "dtype")) for cell in board} == {
        (16, 16384, 64, "bf16")
    }
    assert {cell["dtype"] for cell in gpu_cells() if cell["workload"] == "matmul"} == {"fp32", "tf32", "bf16", "fp16"}


def test_what_cells_need() -> None:
    needs = {(c["implementation"], c["dtype"]): c.requires for c in gpu_cells() if c["workload"] == "grid"}
    assert needs["triton", "bf16"] == ("cuda", "bf16", "triton")
    assert needs["eager", "tf32"] == ("cuda", "tf32") and needs["sdpa_flash", "fp32"] == ("cuda",)
    tiny = plan.planned_cells(unmeasured.raw_config(), "flash_benchmarking", "tiny")
    on_cpu = {c["implementation"]: c.requires for c in tiny if c["device"] == "cpu" and c["workload"] == "grid"}
    assert on_cpu["triton"] == ("cuda", "triton") and on_cpu["tiled"] == on_cpu["sdpa_flash"] == ()


def test_the_costliest_cells_come_last() -> None:
    by_cost = sorted((cell for cell in gpu_cells() if cell["workload"] == "grid"), key=lambda cell: cell.cost)
    assert (by_cost[-1]["implementation"], by_cost[-1]["seq_len"], by_cost[-1]["dtype"]) in {
        (name, 65536, "fp32") for name in ("eager", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient")
    }
    assert by_cost[0]["seq_len"] == 128


# --- measuring --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["eager", "tiled", "sdpa_flash", "sdpa_math"])
def test_a_cell_is_measured_and_checked(implementation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    folder = str(tmp_path / "site" / "data")
    found = measure.run(Cell({**PROBLEM, "implementation": implementation}, data_folder=folder))
    assert set(found.samples) == {"forward_ms", "backward_ms", "both_ms"} == set(found.timers)
    assert {len(samples) for samples in found.samples.values()} == {3}
    assert 0 < found.values["largest_relative_error"] < 1e-5
    assert "calls_per_sample" not in found.values
    taken = {"sdpa_flash": "FLASH_ATTENTION", "sdpa_math": "MATH"}
    assert found.values.get("sdpa_backend") == taken.get(implementation)
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "site" / "cache" / "triton")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "site" / "cache" / "inductor")


def test_the_users_own_cache_folders_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    measure.keep_compiled_code("/site/data")
    assert os.environ["TRITON_CACHE_DIR"] == os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/elsewhere"


def test_a_product_is_measured_and_checked() -> None:
    factors = {"workload": "matmul", "device": "cpu", "dtype": "bf16", "matrix_size": 64, "samples": 3}
    found = measure.run(Cell(factors))
    assert len(found.samples["product_ms"]) == 3 and 1e-5 < found.values["relative_error"] < 1e-2


def test_a_wrong_product_is_refused() -> None:
    a, b = torch.randn(32, 32), torch.randn(32, 32)
    with pytest.raises(ValueError, match="against float64, allowed 1e-09"):
        products.compare(a, b, 1e-9)


def test_ours_on_a_cpu_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="not on cpu"):
        measure.run(Cell({**PROBLEM, "implementation": "triton"}))


def wrong(name: str) -> Any:
    """Attention with one mistake, the same in every run."""
    from perfscribe.attention.eager import scaled_dot_product_attention

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        if name == "not causal":
            return scaled_dot_product_attention(q, k, v)
        if name == "last keys left out":
            mask[:, 80:] = False
        if name == "dq":  # right value, wrong gradient
            q = q.detach() + 2 * (q - q.detach())
        if name == "dk of the first key":
            k = torch.cat([k[..., :1, :].detach(), k[..., 1:, :]], dim=-2)
        return scaled_dot_product_attention(q, k, v, mask)

    return attend


@pytest.mark.parametrize("mistake", ["none", "not causal", "last keys left out", "dq", "dk of the first key"])
def test_the_check_finds_mistakes(mistake: str) -> None:
    torch.manual_seed(0)
    leaves = tuple(torch.randn(1, 2, 96, 16, requires_grad=True) for _ in range(3))
    check = correctness.Check(wrong(mistake), leaves, correctness.TOLERANCE["fp32"])
    check.both()
    if mistake == "none":
        assert check.largest_error()["largest_relative_error"] < 1e-6
        return
    with pytest.raises(ValueError, match=r"is off by .* against float64, allowed 0\.0001"):
        check.largest_error()


def test_the_check_finds_what_is_not_a_number() -> None:
    leaves = tuple(torch.randn(1, 1, 8, 16, requires_grad=True) for _ in range(3))
    check = correctness.Check(lambda q, k, v: q * float("nan"), leaves, 0.1)
    check.forward()
    with pytest.raises(ValueError, match="output is off by nan"):
        check.largest_error()


def test_calls_work_on_copies_of_their_own() -> None:
    inputs = tuple(torch.randn(1, 1, 8, 16) for _ in range(4))
    problem = passes.Problem(backends.named("eager").make(), inputs, True)
    first, second = problem.leaves(), problem.leaves()
    pointers = {tensor.data_ptr() for tensor in (*first, *second, *inputs)}
    assert len(pointers) == 10 and all(tensor.requires_grad and tensor.is_leaf for tensor in first)
    backward = problem.backward()
    once, again = backward(), backward()
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_what_was_measured_before_memory_ran_out_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def backward(self: passes.Problem) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(passes.Problem, "backward", backward)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        passes.measure(PROBLEM)
    found = of_error(raised.value)
    assert found is not None and set(found.samples) == {"forward_ms"}


class FakeGraphs:
    """Graph replay without a GPU: 0.02 ms a call."""

    def capture(self, make: Any, calls: int) -> Any:
        from contextlib import nullcontext

        for _ in range(calls):
            make()()
        return nullcontext(SimpleNamespace(replay_ms=lambda times: [0.0212345678 * calls] * times))


def test_a_gpu_cell_keeps_replays_launches_and_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order and names of what a CUDA cell measures, its device replaced."""
    from perfscribe.experiments.flash_benchmarking import clocks

    monkeypatch.setattr(passes, "clocks", lambda device, samples: clocks.Clocks(FakeGraphs(), samples))
    timing = Timing([0.5] * 5, [0.6], CUDA_EVENTS, 0.0, 0.0)
    monkeypatch.setattr(graph_timing, "time_device", lambda call, warmup, timed: replace(timing))
    found = passes.measure({**PROBLEM, "samples": 10})
    assert list(found.samples) == [
        *("forward_ms", "forward_launched_ms", "backward_ms", "backward_launched_ms", "both_ms", "both_launched_ms")
    ]
    assert found.timers["forward_ms"] == "CUDA graph replay" and found.timers["both_launched_ms"] == "CUDA events"
    assert found.samples["forward_ms"] == [0.021235] * 10  # five digits
    assert list(found.warmup) == ["forward_ms", "backward_ms", "both_ms"]
    assert found.values["calls_per_sample"] == "10 10 10" and "no_graph" not in found.values


# --- kernels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shown", "backend"),
    [
        (
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>, false>(pytorch_flash::Params)",
            "pytorch_flash::flash_fwd_kernel",
            "FLASH_ATTENTION",
        ),
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0",
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob",
            "CUDNN_ATTENTION",
        ),
        (
            "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<bf16>::Params)",
            "fmha_cutlassF_bf16_aligned_64x64_rf_sm80",
            "EFFICIENT_ATTENTION",
        ),
        ("aten::_scaled_dot_product_attention_math", "aten::_scaled_dot_product_attention_math", "MATH"),
        ("forward_kernel", "forward_kernel", kernels.NOT_SEEN),
    ],
)
def test_kernels_are_recognised_by_their_names(name: str, shown: str, backend: str) -> None:
    assert kernels.short(name) == shown
    assert kernels.backend_of([name]) == backend


def test_only_kernels_of_a_trace_count() -> None:
    def event(name: str, device: str, us: float) -> Any:
        return SimpleNamespace(
            name=name, device_type=f"DeviceType.{device}", time_range=SimpleNamespace(elapsed_us=lambda: us)
        )

    trace = [
        event("cudaLaunchKernel", "CPU", 9),
        event("Memset (Device)", "CUDA", 5),
        event("a", "CUDA", 2),
        event("b", "CUDA", 3),
        event("a", "CUDA", 2),
    ]
    assert kernels._times(trace, on_gpu=True).most_common() == [("a", 4), ("b", 3)]


# --- tables -----------------------------------------------------------------------------------------


@cache
def gpu_tables() -> dict[str, Table]:
    return {table.id: table for table in show.tables({"flash_benchmarking": flash_cells.gpu_site()})}


def row(table: str, **levels: Any) -> Any:
    frame = gpu_tables()[table].frame
    for name, level in levels.items():
        frame = frame[frame[name] == level]
    assert len(frame) == 1
    return frame.iloc[0]


def test_times_stand_side_by_side() -> None:
    levels = {"seq_len": 4096, "head_dim": 64, "dtype": "bf16"}
    found = row("cs336.flash_implementations", **levels)
    expected = flash_cells.times_ms({**levels, "heads": 1, "implementation": "triton"})
    assert found["triton_forward_ms"] == pytest.approx(expected["forward"])
    assert found["triton_backward_ms"] == pytest.approx(expected["backward"])
    dtypes = gpu_tables()["cs336.flash_implementations"].frame.query("seq_len == 4096 and head_dim == 64")["dtype"]
    assert list(dtypes) == ["fp32", "tf32", "bf16"]  # TF32 stands beside fp32


def test_a_cell_out_of_memory_leaves_its_forward_and_says_so() -> None:
    found = row("cs336.flash_implementations", seq_len=65536, head_dim=64, dtype="fp32")
    assert found["status"] == "ok" and found["eager_backward_ms"] == "oom"
    assert isinstance(found["eager_forward_ms"], float) and isinstance(found["triton_backward_ms"], float)
    assert "PyTorch, eager: oom, asked for 16.0 GiB, 8.00 GiB free" in found["flags"]


def test_what_was_not_timed_is_not_judged() -> None:
    found = row("cs336.flash_implementations", seq_len=4096, head_dim=64, dtype="fp32")
    assert found["verdict_forward"] == "unsupported" and found["flags"] == ""
    assert (
        row("cs336.flash_implementations", seq_len=4096, head_dim=64, dtype="tf32")["verdict_forward"] == "not planned"
    )


def test_flags_name_the_implementation_that_they_are_of() -> None:
    cells = [
        Record(
            "x", {**PROBLEM, "implementation": name}, "ok", "", "measured", samples={"both_ms": [[1.0]]}, flags=flags
        )
        for name, flags in (("eager", []), ("tiled", ["throttled 9 % of the time"]))
    ]
    assert rows.joined(cells)[0].flags == ["tiles in PyTorch (ours): throttled 9 % of the time"]


def test_rates_follow_the_convention() -> None:
    levels = {"seq_len": 16384, "head_dim": 128, "dtype": "bf16"}
    found = row("cs336.flash_rates", **levels)
    ms = flash_cells.times_ms({**levels, "heads": 1, "implementation": "triton"})
    forward = 4 * 16384**2 * 128 / 2
    assert found["triton_forward_tflop_per_s"] == pytest.approx(forward / ms["forward"] / 1e9)
    assert found["triton_backward_tflop_per_s"] == pytest.approx(2.5 * forward / ms["backward"] / 1e9)
    assert found["matmul_tflop_per_s"] == pytest.approx(flash_cells.PRODUCTS["bf16"])
    share = 100 * found["triton_forward_tflop_per_s"] / flash_cells.PRODUCTS["bf16"]
    assert found["share_forward_percent"] == pytest.approx(share)
    board = {"batch": 1, "heads": 16, "seq_len": 16384, "head_dim": 64, "causal": True}
    assert rows.flop(board, "both") == pytest.approx(1.9241e12, rel=1e-4)


def test_published_figures_stand_beside_their_problem() -> None:
    found = row("cs336.flash_cells", seq_len=16384, head_dim=64, dtype="bf16", implementation="triton")
    assert found["forward_ms_brandon-snider"] == 0.308 and found["forward_backward_ms_yyin-dev"] == 2.289
    eager = row("cs336.flash_cells", seq_len=65536, head_dim=64, dtype="fp32", implementation="eager")
    assert eager["forward_ms_cs336-writeup-002"] == "OOM" and eager["status"] == "oom"


def test_the_leaderboard_holds_every_entry() -> None:
    frame = gpu_tables()["cs336.flash_leaderboard"].frame
    entries = frame[frame["hardware"] == "H100"]
    assert len(entries) == 8 and entries.iloc[0]["both_ms"] == 5.364
    assert entries.iloc[0]["entry"] == "Herman Brunborg"
    assert entries.iloc[0]["tflop_per_s"] == pytest.approx(358.7, rel=1e-3)
    assert list(frame["entry"])[:2] == ["here: PyTorch, eager", "here: Triton (ours)"]


@pytest.mark.parametrize(
    ("base", "other", "verdict"),
    [
        ([[2.0, 2.1]], [[1.0, 1.1]], "faster"),
        ([[1.0, 1.1]], [[2.0, 2.1]], "slower"),
        ([[1.0, 1.2]], [[1.1, 1.3]], "cannot tell"),
        ([[1.0], [1.2]], [[1.1], [0.9]], "cannot tell"),
        ([[2.0 + 0.01 * n] for n in range(6)], [[1.0 + 0.01 * n] for n in range(6)], "faster"),
        # six rounds: the interval of the ratio, though single samples overlap
        ([[2.0, 2.0, 1.0] for _ in range(6)], [[1.5, 1.5, 2.5] for _ in range(6)], "faster"),
    ],
)
def test_verdicts(base: list[list[float]], other: list[list[float]], verdict: str) -> None:
    assert rows.judged(base, other) == verdict


def test_a_row_joins_what_belongs_together() -> None:
    cells = [
        Record("x", {**PROBLEM, "implementation": name}, "ok", "", "measured", samples={"forward_ms": [[1.0, 2.0]]})
        for name in ("eager", "tiled")
    ]
    cells.append(Record("x", {**PROBLEM, "implementation": "triton"}, "unsupported", "no CUDA device", "measured"))
    (found,) = rows.joined(cells)
    assert found.ok and found.flags == []
    column = rows.of_cell("triton", t.median("forward_ms", "F"))
    assert column.get(found) == "unsupported" and rows.of_cell("flex", column).get(found) == "not planned"


def test_the_figure_marks_where_memory_ran_out(tmp_path: Path) -> None:
    (figure,) = show.figures(gpu_tables())
    f.write(figure, tmp_path, "foot")
    svg = (tmp_path / "cs336.flash_times.svg").read_text()
    assert svg.count(">OOM</text>") == 1 and ">d = 64, fp32 on cuda</text>" in svg
    assert "FlexAttention" not in svg and ">64k</text>" in svg
