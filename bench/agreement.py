"""Checks that our measurements agree with established tools.

bench/agreement.py [--trials N]

timers: our CUDA events and graph replays against triton.testing.do_bench, on ten kernels from a few µs to 50 ms;
medians of interleaved turns, each after the call has run for SETTLE_MS, so that clocks are those under load. verdicts:
how many trials of one workload against itself end as "cannot tell", and how many against 3 % more work find it slower.
flop: our counts against torch's FlopCounterMode. memory: predicted peaks of training steps against the allocator's.
nsys: our summary of kernels by NVTX range against `nsys stats -r nvtx_kern_sum`, if nsys works. all-reduce: ours
against a bare loop of the same number of calls between two CUDA events, medians of interleaved turns, on two GPUs and
on all, if there are several. Exit status 1 if a bound does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import io
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import nvtx
import torch
from tabulate import tabulate
from torch.utils.flop_counter import FlopCounterMode
from triton.testing import do_bench

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from nvtx_kernels import nvtx_kernel_summary  # noqa: E402

from perfscribe.analytic.flops import forward_matmul_flop  # noqa: E402
from perfscribe.analytic.memory import step_phase_peaks, total_bytes  # noqa: E402
from perfscribe.analytic.shapes import SIZES  # noqa: E402
from perfscribe.analytic.workload import Workload  # noqa: E402
from perfscribe.distributed import collectives  # noqa: E402
from perfscribe.distributed.launch import launch  # noqa: E402
from perfscribe.instruments.graph_timing import CudaGraphs, Graph, Make, time_replays  # noqa: E402
from perfscribe.instruments.profiling import nsys  # noqa: E402
from perfscribe.instruments.profiling.nsys_export import read_sqlite  # noqa: E402
from perfscribe.instruments.statistics import ratio  # noqa: E402
from perfscribe.instruments.timing import time_device  # noqa: E402
from perfscribe.models.transformer import Model, next_token_loss  # noqa: E402

Call = Callable[[], object]
TURNS = 5
# Square BF16 matrix products and doublings of float32 vectors, by length.
PRODUCTS = (256, 1024, 2048, 4096, 8192, 16384)
VECTORS = (2**16, 2**22, 2**26, 2**30)
WITHIN = 0.02  # allowed deviation of the median ratio
ROUNDS, SAMPLES = 12, 3  # per trial
MEMORY_WITHIN = 0.03  # allowed deviation from the allocator's peak
SETTLE_MS = 300  # warm-up of the call before each timer
LONG_MS = 0.1  # calls this long hide their launch time, which a replay leaves out, within WITHIN
MESSAGES_MB = (100, 300, 1000)  # MB of 10⁶ bytes; shorter calls of the bare loop would wait for the host's launches
WORK, MORE = 100, 103  # products per call: 3 % more


class Settled(CudaGraphs):
    """Graphs replayed for SETTLE_MS before they are timed, since the device idles during capture."""

    @contextlib.contextmanager
    def capture(self, make: Make, calls: int) -> Iterator[Graph]:
        with super().capture(make, calls) as graph:
            end = time.perf_counter() + SETTLE_MS / 1e3
            while time.perf_counter() < end:
                graph.replay_ms(10)
            yield graph


def kernels() -> dict[str, Make]:
    """Return ten functions by name, each of which makes a call on new tensors."""

    def product(n: int) -> Call:
        a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=out)

    def doubling(n: int) -> Call:
        of, to = torch.randn(n, device="cuda"), torch.empty(n, device="cuda")
        return lambda: torch.add(of, of, out=to)

    made: dict[str, Make] = {f"product {n}": functools.partial(product, n) for n in PRODUCTS}
    return made | {f"vector {4 * n / 2**20:g} MiB": functools.partial(doubling, n) for n in VECTORS}


def timers() -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Time all kernels; return one row per kernel, and the median ratios of both timers."""
    rows, recorder = [], Settled()
    for name, make in kernels().items():
        call = make()
        times: dict[str, list[float]] = {"do_bench": [], "events": [], "replay": []}
        for _ in range(TURNS):
            do_bench(call, warmup=0, rep=SETTLE_MS)
            times["do_bench"].append(float(do_bench(call, warmup=20, rep=60, return_mode="median")))
            samples = max(5, min(100, int(60 / times["do_bench"][0])))
            do_bench(call, warmup=0, rep=SETTLE_MS)
            times["events"].append(median(time_device(call, warmup=5, timed=samples).samples_ms))
            replays = time_replays(make, samples=samples, recorder=recorder)
            times["replay"].append(median(replays.timing.samples_ms))
        found = {f"{timer} ms": median(ms) for timer, ms in times.items()}
        row: dict[str, Any] = {"kernel": name, **found}
        for timer in ("events", "replay"):
            row[f"{timer} / do_bench"] = median(a / b for a, b in zip(times[timer], times["do_bench"], strict=True))
        rows.append(row)
    long = [row for row in rows if row["do_bench ms"] >= LONG_MS]
    return rows, {
        "events / do_bench": median(row["events / do_bench"] for row in rows),
        f"replay / do_bench from {LONG_MS} ms on": median(row["replay / do_bench"] for row in long),
    }


def verdicts(trials: int) -> dict[str, int]:
    """Run the trials of each kind; return how many end as they should."""
    a, b = (torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def times(products: int) -> Call:
        def call() -> None:
            for _ in range(products):
                torch.mm(a, b, out=out)

        return call

    found = {"against itself: cannot tell": 0, "3 % more: slower": 0}
    for _ in range(trials):
        rounds: dict[str, list[list[float]]] = {"first": [], "second": [], "third": [], "more": []}
        calls = dict.fromkeys(("first", "second", "third"), times(WORK)) | {"more": times(MORE)}
        for turn in range(ROUNDS):
            for name in list(calls) if turn % 2 == 0 else reversed(list(calls)):
                rounds[name].append(time_device(calls[name], warmup=1, timed=SAMPLES).samples_ms)
        same = ratio(rounds["first"], rounds["second"], rounds["third"])
        more = ratio(rounds["first"], rounds["more"], rounds["third"])
        found["against itself: cannot tell"] += same.verdict == "cannot tell"
        found["3 % more: slower"] += more.verdict == "slower"
    return found


def flop(size: str = "small", batch: int = 4, context: int = 512) -> tuple[int, int]:
    """FLOP of a forward pass: our count, torch's count."""
    model = Model(SIZES[size], context, device="cuda")
    tokens = torch.zeros(batch, context, dtype=torch.int64, device="cuda")
    with FlopCounterMode(display=False) as counter:
        model(tokens)
    return sum(forward_matmul_flop(SIZES[size], batch, context).values()), int(counter.get_total_flops())


def training(load: Workload) -> Call:
    """Make a training step of the language model, with its forward pass in an NVTX range."""
    model = Model(load.shape, load.seq_len, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(load.shape.vocab_size, (load.batch, load.seq_len), device="cuda")
    targets = tokens.clone()

    def step() -> None:
        optimizer.zero_grad()
        with (
            nvtx.annotate("forward"),
            torch.autocast("cuda", dtype=torch.bfloat16) if load.low else contextlib.nullcontext(),
        ):
            loss = next_token_loss(model, tokens, targets)
        loss.backward()
        optimizer.step()

    return step


def peaks() -> list[dict[str, Any]]:
    """Predicted and allocated peak of a step after the first; one row per model and dtype."""
    rows = []
    for size, seq_len in (("small", 512), ("small", 128), ("medium", 256), ("large", 256)):
        for dtype in ("fp32", "bf16"):
            load = Workload(SIZES[size], 4, seq_len, dtype)
            step = training(load)
            for _ in range(2):
                step()
            torch.cuda.reset_peak_memory_stats()
            step()
            measured = torch.cuda.max_memory_allocated()
            predicted = max(total_bytes(items) for items in step_phase_peaks(load).values())
            rows.append(
                {
                    "model": f"{size} {seq_len} {dtype}",
                    "predicted GiB": predicted / 2**30,
                    "allocated GiB": measured / 2**30,
                    "predicted / allocated": predicted / measured,
                }
            )
            del step
            torch.cuda.empty_cache()
    return rows


def traced_rows() -> tuple[int, int]:
    """Number of rows of `nsys stats` for a traced program, and how many of them ours has; raises NsysError."""
    installed = nsys.find()
    with tempfile.TemporaryDirectory() as folder:
        report = nsys.profile(installed, [sys.executable, __file__, "--traced"], Path(folder) / "trace", 120)
        export = nsys.export_sqlite(installed, report, Path(folder) / "trace.sqlite")
        text = nsys.kernel_summary(installed, export)
        ours = set(nvtx_kernel_summary(read_sqlite(export)))
    rows = list(csv.reader(io.StringIO(text)))[1:]
    theirs = [(row[0].lstrip(":"), *row[1:]) for row in rows if row]
    return len(theirs), sum(row in ours for row in theirs)


def all_reduces(arguments: dict[str, Any], rank: Any) -> list[list[float]]:
    """Time an all-reduce on a rank: ms per turn, ours and the bare loop's."""
    message = {"operation": "all_reduce", "size_bytes": arguments["size_bytes"]}
    buffer = torch.ones(arguments["size_bytes"] // 4, device=rank.device)
    found: list[list[float]] = []
    for _ in range(TURNS):
        (ours,) = collectives.run_on_rank({"messages": [message]}, rank)
        calls = len(ours["samples_ms"])
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.distributed.all_reduce(buffer)
        torch.cuda.synchronize()
        torch.distributed.barrier()
        begin.record()
        for _ in range(calls):
            torch.distributed.all_reduce(buffer)
        end.record()
        torch.cuda.synchronize()
        found.append([median(ours["samples_ms"]), begin.elapsed_time(end) / calls])
    return found


def all_reduce() -> list[dict[str, Any]]:
    """Compare all-reduces: one row per message, of the slowest rank; none with fewer than two GPUs."""
    rows: list[dict[str, Any]] = []
    every = torch.cuda.device_count()
    for gpus, size_mb in itertools.product(sorted({2, every}) if every > 1 else (), MESSAGES_MB):
        arguments = {"size_bytes": size_mb * 10**6}
        said = launch("agreement:all_reduces", arguments, world_size=gpus, backend="nccl", timeout_s=120)
        turns = [[max(times) for times in zip(*ranks, strict=True)] for ranks in zip(*said, strict=True)]
        ours, bare = (median(times) for times in zip(*turns, strict=True))
        ratios = median(one / other for one, other in turns)
        rows.append(
            {"all-reduce": f"{size_mb} MB, {gpus} GPUs", "ours ms": ours, "bare ms": bare, "ours / bare": ratios}
        )
    return rows


def main() -> int:
    """Print all tables; return 1 if a bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.traced:
        step = training(Workload(SIZES["small"], 4, 128))
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        return 0
    print(torch.cuda.get_device_name(), f"torch {torch.__version__}", flush=True)
    rows, medians = timers()
    print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=".4g"), medians, sep="\n", flush=True)
    ours, theirs = flop()
    print(f"FLOP of a forward pass: {ours:,} counted, {theirs:,} by torch", flush=True)
    memory = peaks()
    print(tabulate(memory, headers="keys", tablefmt="github", floatfmt=".4g"), flush=True)
    compared = None
    try:
        compared = traced_rows()
        print(f"nsys stats: {compared[1]} of {compared[0]} rows equal")
    except nsys.NsysError as error:
        print(f"nsys stats: not compared, {error}")
    reduced = all_reduce()
    print(tabulate(reduced, headers="keys", tablefmt="github", floatfmt=".4g") or "all-reduce: one GPU", flush=True)
    found = verdicts(args.trials)
    print(*(f"{name}: {count} of {args.trials}" for name, count in found.items()), sep="\n")
    holds = all(abs(row["predicted / allocated"] - 1) <= MEMORY_WITHIN for row in memory)
    holds &= all(abs(row["ours / bare"] - 1) <= WITHIN for row in reduced)
    holds &= compared is None or compared[0] == compared[1] > 0
    holds &= all(abs(one - 1) <= WITHIN for one in medians.values()) and ours == theirs
    holds &= found["against itself: cannot tell"] >= 0.95 * args.trials
    return 0 if holds and found["3 % more: slower"] >= 0.9 * args.trials else 1


if __name__ == "__main__":
    sys.exit(main())
