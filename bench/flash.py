"""Our Triton flash attention beside eager attention and scaled_dot_product_attention, on one GPU, in one run.

bench/flash.py [--quick] [--budget-s N] [--out FILE]
bench/flash.py --tune [--quick] [--budget-s N] [--out FILE]

Each implementation is first compared with float64; one that is wrong is not timed. Then all of a cell take turns, and
each gets three times of a call, medians: on the device (CUDA graphs replayed, L2 flushed before each replay), launched
(triton.testing.do_bench) and on the host (µs to queue the call). The leaderboard's closure comes first: compiled
attention, the sum of its output, backward, by do_bench for 10 s. Exit status 1: ours was wrong somewhere.

--quick: fewer lengths and shorter runs. --tune searches tiles instead (bench/flash_tune.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
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

from bench import flash_tune  # noqa: E402
from perfscribe.attention import backends  # noqa: E402
from perfscribe.attention.triton_kernels import FlashAttentionTriton  # noqa: E402
from perfscribe.base.cells import Unsupported  # noqa: E402
from perfscribe.experiments.flash_benchmarking.correctness import TOLERANCE, Check  # noqa: E402
from perfscribe.experiments.flash_benchmarking.measure import Problem  # noqa: E402
from perfscribe.instruments.graph_timing import CudaGraphs, time_replays  # noqa: E402

TURNS = 3
SAMPLES = 9  # replays a turn
HOST_CALLS = 20  # queued without waiting: fewer launches than the driver holds back
OTHERS = ("eager", "sdpa_flash", "sdpa_cudnn")
PASSES = ("forward", "backward", "both")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
HEADERS = ["heads", "n", "d", "dtype", "pass", "implementation", "device ms", "launched ms", "host µs",
           "ours / it: device", "launched", "error"]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Cell:
    """One causal problem of batch 1."""

    heads: int
    n: int
    d: int
    dtype: str


def cells(quick: bool) -> Iterator[Cell]:
    """Sixteen heads of the leaderboard's length, then flash_benchmarking's grid of one head."""
    yield from (Cell(16, 16384, d, "bf16") for d in (64, 128))
    lengths = (128, 1024, 4096, 16384) if quick else [2**power for power in range(7, 17)]
    yield from (Cell(1, n, d, dtype) for dtype in DTYPES for n in lengths for d in (16, 32, 64, 128))


def cases_of(cell: Cell) -> list[dict]:
    """What our passes of a cell compile, as bench/flash_compile.py takes it."""
    case = {"dtype": cell.dtype, "d": cell.d, "n": [cell.n, cell.n], "heads": cell.heads}
    return [case | {"pass": side} for side in ("forward", "backward")]


def host_us(call: Callable[[], object]) -> float:
    """µs a call to queue it."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        call()
    spent_s = time.perf_counter() - start
    torch.cuda.synchronize()
    return spent_s / HOST_CALLS * 1e6


def checked(call: backends.Call, inputs: tuple[torch.Tensor, ...], dtype: str) -> float:
    """The largest relative error of output and gradients against float64; ValueError beyond the tolerance."""
    leaves = tuple(x.clone().requires_grad_() for x in inputs[:3])
    check = Check(lambda q, k, v: call(q, k, v, True), leaves, TOLERANCE[dtype])
    check.both()
    return max(check.largest_error().values())


def rows_of(cell: Cell, graphs: CudaGraphs) -> Iterator[dict[str, Any]]:
    """A row for each pass and implementation, or for each implementation that cannot run or is wrong."""
    dtype = DTYPES[cell.dtype]
    inputs = tuple(torch.randn(1, cell.heads, cell.n, cell.d, device="cuda", dtype=dtype) for _ in range(4))
    problems, errors = {}, {}
    # sixteen heads of eager attention would take most of the time
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
            row |= {"launched_ms": launched_ms, "host_us": queued_us, "turns": measured}
            yield row | {"device_ratio": ours[0] / device_ms, "launched_ratio": ours[1] / launched_ms}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    keys = ["heads", "n", "d", "dtype", "pass", "implementation", "device_ms", "launched_ms", "host_us", "device_ratio",
            "launched_ratio", "error"]  # fmt: skip
    cells = [[row.get(key, row.get("failed", "") if key == "pass" else "") for key in keys] for row in rows]
    formats = ("",) * 6 + (".4f", ".4f", ".0f", ".3f", ".3f", ".1e")
    return tabulate(cells, HEADERS, "github", floatfmt=formats)


def leaderboard(quick: bool) -> dict[str, float]:
    """Milliseconds of the competition's closure, as the handout times it."""
    sdpa = {name: backends.make_call(name, "cuda", torch.bfloat16, 64, True) for name in OTHERS[1:]}
    attention: dict[str, Callable[..., torch.Tensor]] = {"ours": torch.compile(FlashAttentionTriton.apply)}
    for name, call in sdpa.items():
        attention[name] = lambda q, k, v, is_causal, call=call: call(q[None], k[None], v[None], is_causal)
    found = {}
    for name, attend in attention.items():
        q, k, v = torch.randn(3, 16, 16384, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)

        def closure(attend: Callable = attend, q: Any = q, k: Any = k, v: Any = v) -> None:
            attend(q, k, v, True).sum().backward()

        found[name] = do_bench(closure, warmup=100 if quick else 1000, rep=1000 if quick else 10000)
        print(f"leaderboard, {name}: {found[name]:.3f} ms", flush=True)
    return found


def compare(quick: bool, budget_s: float, keep: Callable[[dict], None]) -> bool:
    """Measure until the budget is spent; every cell's rows are printed as they come. Whether ours was right."""
    end = time.monotonic() + budget_s
    planned = list(cells(quick))
    flash_tune.precompile([case for cell in planned for case in cases_of(cell)], capability(), budget_s / 4)
    results: dict[str, Any] = {"leaderboard_ms": leaderboard(quick), "rows": []}
    graphs = CudaGraphs()
    for cell in planned:
        if time.monotonic() > end:
            print(f"out of time: {cell}")
            continue
        rows = list(rows_of(cell, graphs))
        print(table(rows), flush=True)
        results["rows"] += rows
        keep(results)
        torch.cuda.empty_cache()
    return not any(row["implementation"] == "triton" and "failed" in row for row in results["rows"])


def capability() -> int:
    """Compute capability of the device, 90 for Hopper."""
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def main() -> int:
    """Tune or compare; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer lengths, and no fp32 in --tune")
    parser.add_argument("--tune", action="store_true", help="search tiles in place of the comparison")
    parser.add_argument("--budget-s", type=float, default=540.0, help="start nothing new after so many seconds")
    parser.add_argument("--out", type=Path, default=None, help="a JSON file for all figures")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("it needs a CUDA device")
    device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}

    def keep(results: dict[str, Any]) -> None:
        if args.out:
            args.out.write_text(json.dumps(device | results, indent=1) + "\n")

    if args.tune:
        flash_tune.tune(args.quick, args.budget_s, capability(), lambda found: keep({"found": found}))
        return 0
    return 0 if compare(args.quick, args.budget_s, keep) else 1


if __name__ == "__main__":
    raise SystemExit(main())
