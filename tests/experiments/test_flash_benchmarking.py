"""flash_benchmarking: cells that really run, their check against float64, and the leaderboard."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfscribe.base.cells import Cell
from perfscribe.experiments.cs336.flash_benchmarking import measure, show, subject
from perfscribe.instruments import correctness
from perfscribe.records.records import Record

PROBLEM = {"workload": "grid", "device": "cpu", "seq_len": 96, "head_dim": 16, "dtype": "fp32", "batch": 1, "heads": 2}
PROBLEM |= {"causal": True, "implementation": "eager", "samples": 3}


@pytest.mark.parametrize(("implementation", "backend"), [("tiled", None), ("sdpa_flash", "FLASH_ATTENTION")])
def test_a_cell_is_measured_and_checked(implementation: str, backend: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/the/users/own")
    cell = Cell({**PROBLEM, "implementation": implementation}, data_folder=str(tmp_path / "site" / "data"))
    found = measure.run(cell)
    assert set(found.samples) == {"forward_ms", "backward_ms", "both_ms"} == set(found.timers)
    assert {len(samples) for samples in found.samples.values()} == {3}
    assert 0 < found.values["largest_relative_error"] < 1e-5 and found.values.get("sdpa_backend") == backend
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "site" / "cache" / "triton")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/the/users/own"
    monkeypatch.setitem(correctness.TOLERANCE, "fp32", 1e-9)
    with pytest.raises(ValueError, match=r"is off by .* against float64, allowed 1e-09"):
        measure.run(cell)


def test_a_product_is_measured_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell({"workload": "matmul", "device": "cpu", "dtype": "bf16", "matrix_size": 64, "samples": 3})
    found = measure.run(cell)
    assert len(found.samples["product_ms"]) == 3 and 1e-5 < found.values["relative_error"] < 1e-2
    monkeypatch.setitem(correctness.TOLERANCE, "bf16", 1e-9)
    with pytest.raises(ValueError, match=r"product is off by .* against float64, allowed 1e-09"):
        measure.run(cell)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>(pytorch_flash::Params)", "FLASH_ATTENTION"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1", "CUDNN_ATTENTION"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)", "EFFICIENT_ATTENTION"),
        ("forward_kernel", measure.NOT_SEEN),
    ],
)
def test_backends_are_recognised_by_the_kernels_of_a_trace(name: str, backend: str) -> None:
    def event(name: str, device: str) -> Any:
        spent = SimpleNamespace(elapsed_us=lambda: 2)
        return SimpleNamespace(name=name, device_type=f"DeviceType.{device}", time_range=spent)

    trace = [event("cudaLaunchKernel", "CPU"), event("Memset (Device)", "CUDA"), event(name, "CUDA")]
    times = measure.times_by_name([*trace, trace[-1]], on_gpu=True)
    assert times == {name: 4} and measure.backend_of(times) == backend


def test_the_leaderboard_says_why_a_kernel_has_no_closure() -> None:
    factors = PROBLEM | {"workload": "leaderboard", "device": "cuda", "implementation": "sdpa_flash"}
    samples = {f"{phase}_ms": [[1.0, 2.0]] for phase in ("forward", "backward", "both")}
    why_not = subject.cause(RuntimeError("inductor raised:\nCompilationError: at 9:4: no dot\n\nSet TORCH_LOGS"))
    figures: dict[str, Any] = {"timers": {"both_ms": "graph"}, "values": {"no_closure": why_not}}
    record = Record("flash_benchmarking", factors, "ok", "", "measured", samples, **figures)
    board = show.tables({"flash_benchmarking": [record]})[0].frame
    assert board["closure_ms"][0] == "RuntimeError: CompilationError: at 9:4: no dot"
