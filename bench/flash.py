"""Compares our Triton flash attention with eager attention and scaled_dot_product_attention, on one GPU, in one run.

bench/flash.py [--quick]

Each implementation is first compared with float64; wrong ones are not timed. The others are timed in turns, with three
medians per call: on the device (CUDA graph replays, L2 flushed before each replay), launched (triton.testing.do_bench)
and on the host (µs to queue the call). The leaderboard's closure comes first: compiled attention, sum of its output,
backward, by do_bench for 10 s. Exit status 1: ours was wrong somewhere.

--quick: fewer lengths and shorter runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tabulate import tabulate
from triton.testing import do_bench

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from perfscribe.attention import backends  # noqa: E402
from perfscribe.attention.reference import Check  # noqa: E402
from perfscribe.attention.triton_kernels import FlashAttentionTriton  # noqa: E402
from perfscribe.base.cells import Unsupported  # noqa: E402
from perfscribe.experiments.cs336.flash_benchmarking.measure import Problem  # noqa: E402
from perfscribe.instruments.correctness import TOLERANCE  # noqa: E402
from perfscribe.instruments.graph_timing import CudaGraphs, time_replays  # noqa: E402

TURNS = 3
SAMPLES = 9  # replays per turn
HOST_CALLS = 20  # queued without waiting: few enough that the driver's launch queue does not block
OTHERS = ("eager", "sdpa_flash", "sdpa_cudnn")
PASSES = ("forward", "backward", "both")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
HEADERS = ["heads", "n", "d", "dtype", "pass", "implementation", "device ms", "launched ms", "host µs",
           "ours / it: device", "launched", "error"]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Cell:
    """A causal attention problem with batch size 1."""

    heads: int
    n: int
    d: int
    dtype: str


def cells(quick: bool) -> Iterator[Cell]:
    """Yield sixteen heads at the leaderboard's length, then flash_benchmarking's grid with one head."""
    yield from (Cell(16, 16384, d, "bf16") for d in (64, 128))
    lengths = (128, 1024, 4096, 16384) if quick else [2**power for power in range(7, 17)]
    yield from (Cell(1, n, d, dtype) for dtype in DTYPES for n in lengths for d in (16, 32, 64, 128))


def host_us(call: Callable[[], object]) -> float:
    """Mean µs to queue a call."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        call()
    spent_s = time.perf_counter() - start
    torch.cuda.synchronize()
    return spent_s / HOST_CALLS * 1e6


def checked(call: backends.Call, inputs: tuple[torch.Tensor, ...], dtype: str) -> float:
    """Largest relative error of output and gradients against float64; WrongResult beyond the tolerance."""
    leaves = tuple(x.clone().requires_grad_() for x in inputs[:3])
    check = Check(lambda q, k, v: call(q, k, v, True), leaves, is_causal=True)
    check.both()
    return max(check.largest_error(TOLERANCE[dtype]).values())


def rows_of(cell: Cell, graphs: CudaGraphs) -> Iterator[dict[str, Any]]:
    """Yield a row for each pass and implementation, or for each implementation that cannot run or is wrong."""
    dtype = DTYPES[cell.dtype]
    inputs = tuple(torch.randn(1, cell.heads, cell.n, cell.d, device="cuda", dtype=dtype) for _ in range(4))
    problems, errors = {}, {}
    # Eager attention is omitted for sixteen heads, where it would take most of the time.
    for name in ("triton", *(OTHERS if cell.heads == 1 else OTHERS[1:])):
        try:
            call = backends.make_call(name, "cuda", dtype, cell.d, True)
            errors[name] = checked(call, inputs, cell.dtype)
            problems[name] = Problem(call, inputs, True)  # type: ignore[arg-type]
        except (Unsupported, ValueError, torch.OutOfMemoryError) as reason:
            yield {**vars(cell), "implementation": name, "failed": str(reason).splitlines()[0]}
    for each in PASSES if "triton" in problems else ():
        makes = {name: getattr(problem, each) for name, problem in problems.items()}
        calls = {name: make() for name, make in makes.items()}
        turns: dict[str, list[tuple[float, float, float]]] = {name: [] for name in makes}
        for _ in range(TURNS):
            for name, make in makes.items():
                device = time_replays(make, samples=SAMPLES, recorder=graphs).timing.samples_ms
                launched = do_bench(calls[name], warmup=5, rep=20, return_mode="median")
                turns[name].append((median(device), launched, host_us(calls[name])))
        ours = [median(times) for times in zip(*turns["triton"], strict=True)]
        for name, measured in turns.items():
            device_ms, launched_ms, queued_us = (median(times) for times in zip(*measured, strict=True))
            row = {**vars(cell), "pass": each, "implementation": name, "device_ms": device_ms, "error": errors[name]}
            row |= {"launched_ms": launched_ms, "host_us": queued_us}
            yield row | {"device_ratio": ours[0] / device_ms, "launched_ratio": ours[1] / launched_ms}


def table(rows: list[dict[str, Any]]) -> str:
    """Format rows as Markdown."""
    keys = ["heads", "n", "d", "dtype", "pass", "implementation", "device_ms", "launched_ms", "host_us", "device_ratio",
            "launched_ratio", "error"]  # fmt: skip
    cells = [[row[key] for key in keys] for row in rows]
    formats = ("",) * 6 + (".4f", ".4f", ".0f", ".3f", ".3f", ".1e")
    return tabulate(cells, HEADERS, "github", floatfmt=formats)


def leaderboard(quick: bool) -> None:
    """Print the milliseconds of the leaderboard's closure, timed as in the handout."""
    sdpa = {name: backends.make_call(name, "cuda", torch.bfloat16, 64, True) for name in OTHERS[1:]}
    attention: dict[str, Callable[..., torch.Tensor]] = {"ours": torch.compile(FlashAttentionTriton.apply)}
    for name, call in sdpa.items():
        attention[name] = lambda q, k, v, is_causal, call=call: call(q[None], k[None], v[None], is_causal)
    for name, attend in attention.items():
        q, k, v = torch.randn(3, 16, 16384, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)

        def closure(attend: Callable = attend, q: Any = q, k: Any = k, v: Any = v) -> None:
            attend(q, k, v, True).sum().backward()

        spent_ms = do_bench(closure, warmup=100 if quick else 1000, rep=1000 if quick else 10000)
        print(f"leaderboard, {name}: {spent_ms:.3f} ms", flush=True)


def compare(quick: bool) -> bool:
    """Print the leaderboard's closure, then each cell's rows; return whether ours was right."""
    leaderboard(quick)
    graphs, right = CudaGraphs(), True
    for cell in cells(quick):
        rows = list(rows_of(cell, graphs))
        failed = [row for row in rows if "failed" in row]
        print(table([row for row in rows if "failed" not in row]))
        print(*(f"{row['implementation']}: {row['failed']}" for row in failed), sep="\n", flush=True)
        right &= not any(row["implementation"] == "triton" for row in failed)
        torch.cuda.empty_cache()
    return right


def main() -> int:
    """Compare; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer lengths, shorter runs")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("it needs a CUDA device")
    return 0 if compare(args.quick) else 1


if __name__ == "__main__":
    raise SystemExit(main())
