"""Flash attention, tiled in PyTorch and in Triton: against float64, arguments, memory, choices, kernels for Hopper."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from allocations import LiveBytes
from attention_reference import check

from perfscribe.attention import tiled
from perfscribe.attention import triton_configs as configs
from perfscribe.attention.tiled import FlashAttentionTorch
from perfscribe.attention.triton_kernels import FlashAttentionTriton
from perfscribe.attention.triton_splits import Walks, split_length

HERE = Path(__file__).resolve().parents[1]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 6e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3}


def operands(n_queries, n_keys, d, dtype=torch.float32, leading=(2,)):
    torch.manual_seed(n_queries + n_keys + d)
    return [torch.randn(*leading, n, d).to(dtype).requires_grad_() for n in (n_queries, n_keys, n_keys)]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shape", "leading", "d"), [((1, 1), (2,), 16), ((33, 50), (2, 3), 24)])
def test_torch_against_float64(monkeypatch, leading, d, shape, causal, dtype):
    monkeypatch.setattr(tiled, "TILE", 16)
    q, k, v = operands(*shape, d, dtype, leading)
    check(FlashAttentionTorch.apply, q, k, v, causal, TOLERANCE[dtype])


def test_torch_allocates_no_matrix_of_scores():
    n, d = 2048, 16
    q, k, v = operands(n, n, d, leading=(1,))
    with LiveBytes() as live:
        FlashAttentionTorch.apply(q, k, v, True).sum().backward()
    assert live.peak < 4 * n * n / 2  # half of one n × n matrix in fp32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (operands(4, 4, 12), "head dimension must be a multiple of 8 from 16 to 128, not 12"),
        (operands(4, 4, 16, leading=()), r"Q \(4, 16\)"),
        (operands(0, 4, 16), r"may be empty: Q \(2, 0, 16\)"),
        ([operands(4, 4, 16)[0], *operands(4, 4, 16, leading=(3,))[1:]], "batch and heads"),
        ([operands(4, 4, 16)[0], *operands(4, 4, 16, torch.float16)[1:]], r"one dtype, not Q torch\.float32, K"),
        ([x.to("meta") for x in operands(4, 4, 16)], "device must be .*, not meta"),
        ([*operands(4, 4, 16), 1], "is_causal must be True or False, not 1"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    for implementation in (FlashAttentionTorch, FlashAttentionTriton):
        with pytest.raises(ValueError, match=message):
            implementation.apply(*arguments)


def test_triton_refuses_the_cpu_unless_interpreted_and_float64():
    with pytest.raises(ValueError, match="device must be cuda, not cpu"):
        FlashAttentionTriton.apply(*operands(4, 4, 16))
    with pytest.raises(ValueError, match=r"not torch\.float64"):
        FlashAttentionTriton.apply(*operands(4, 4, 16, torch.float64))


def run_kernels(interpret: bool, part: int, count: int) -> None:
    """The cases of flash_kernels.py in a process of their own, for Triton reads TRITON_INTERPRET when imported."""
    environment = os.environ | {"FLASH_PART": f"{part}/{count}", "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(HERE / "flash_kernels.py")],
        cwd=HERE.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    last = done.stdout.strip().splitlines()[-1]
    assert " passed" in last and "skipped" not in last


@pytest.mark.slow
def test_triton_in_the_interpreter():
    run_kernels(True, 0, 1)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: the kernels run in the interpreter alone")
def test_triton_natively():
    """In several processes at once, for most of the time goes into compiling."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda part: run_kernels(False, part, 8), range(8)))


def test_choices_follow_torch_unless_chosen():
    before = torch.get_float32_matmul_precision()
    try:
        for torchs, ours in (("highest", "tf32x3"), ("high", "tf32")):
            torch.set_float32_matmul_precision(torchs)
            assert (configs.float32_precision(None), configs.float32_precision("ieee")) == (ours, "ieee")
        assert configs.backward_for(64, 1024, torch.bfloat16, "one_pass", True) == "one_pass"
        assert configs.backward_for(64, 1024, torch.bfloat16, None, True) == "gluon"
        torch.use_deterministic_algorithms(True)
        assert configs.backward_for(64, 1024, torch.bfloat16, "one_pass", True) == "two_pass"
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("n", "own", "unit", "warps", "splits"), [(16384, 128, 128, 8, 2), (4096, 64, 128, 4, 6)])
def test_the_number_of_splits_is_one_that_ends_first(n, own, unit, warps, splits):
    """Fastest on an H200 of all numbers of splits tried."""
    rows = split_length(Walks(n, n, own, unit, 1, True, True), 132, warps)
    assert -(-n // rows) in (splits, splits + 1)


SHARED_LIMIT_BYTES = 227 * 1024  # Hopper's
SPILL_LIMIT_BYTES = 256  # one pass at d = 128 needs all 255 registers, and addresses that do not change go to memory
KERNELS = {"forward_kernel", "dkdv_kernel", "dq_kernel", "backward_kernel"}


def compiled(cases, tmp_path, capability=90):
    """Compile the attention kernels of each case without a GPU, in a separate process."""
    pytest.importorskip("triton", reason="no triton here")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(HERE / "flash_compile.py"), str(capability), json.dumps(cases)],
        env=environment | {"OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["case"] for row in rows} == set(range(len(cases)))
    return [(cases[row["case"]], row) for row in rows if row["kernel"] in KERNELS]


DEFAULT = [
    {"pass": "forward", "d": 64},
    {"pass": "backward", "backward": "two_pass", "d": 128, "n": [16384, 16384]},
    {"pass": "backward", "backward": "one_pass", "d": 128, "n": [16384, 16384]},
]
MANY_ROWS = [  # in Gluon
    {"pass": "forward", "d": 80, "n": [40000, 40000]},
    {"pass": "backward", "d": 64, "n": [40000, 40000]},
    {"pass": "backward", "d": 128, "n": [40000, 40000], "causal": False},
]
# One row, where Triton makes a constant of the length; tails and columns to be masked without a causal mask.
ODD = [
    {"pass": "backward", "d": 80, "n": [1, 1], "causal": True},
    {"pass": "forward", "d": 24, "n": [1000, 777], "causal": False},
]
FP32 = [
    {"pass": "forward", "dtype": "fp32", "products": "ieee"},
    {"pass": "backward", "dtype": "fp32", "products": "tf32x3"},
]


@pytest.mark.slow
def test_tiles_fit_hopper_and_use_what_they_are_written_for(tmp_path):
    for case, kernel in compiled([*DEFAULT, *MANY_ROWS, *ODD, *FP32], tmp_path):
        assert kernel["shared_bytes"] <= SHARED_LIMIT_BYTES, kernel
        if case in DEFAULT:
            assert kernel["spilled_bytes"] <= SPILL_LIMIT_BYTES, kernel
            one_pass = case.get("backward") == "one_pass"
            name = "one_pass" if one_pass else kernel["kernel"].removesuffix("_kernel")
            tma = configs.HALF["narrow" if case["d"] == 64 else "wide", "long" if "n" in case else "short"][name].tma
            assert kernel["wgmma"] and bool(kernel["tma_loads"]) == tma, kernel
            assert bool(kernel["tma_sums"]) == (one_pass and tma), kernel
        if case in MANY_ROWS:
            assert kernel["spilled_bytes"] <= SPILL_LIMIT_BYTES and kernel["wgmma"] and kernel["tma_loads"], kernel
            assert bool(kernel["tma_sums"]) == (case["pass"] == "backward"), kernel
        if case in FP32:
            assert kernel["spilled_bytes"] <= SPILL_LIMIT_BYTES, kernel
            # tiles of 32 rows have too few for a warp group's instruction, but not for a warp's
            assert bool(kernel["wgmma"] or kernel["mma"]) == (case["products"] != "ieee"), kernel


@pytest.mark.slow
def test_older_gpus_get_tiles_that_fit_them(tmp_path):
    for _, kernel in compiled([{"pass": "forward", "d": 128}], tmp_path, capability=86):
        assert kernel["shared_bytes"] <= 99 * 1024 and not kernel["tma_loads"], kernel
