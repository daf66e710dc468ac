"""Our collectives, data-parallel wrappers and sharded optimizer against torch's own, on several ranks, in one run.

bench/distributed.py [--size xl] [--world-size 2 4] [--rounds N] [--budget-s N] [--out FILE]

All variants of a part take turns, round after round, in one launch; a ratio is that of medians over rounds with its
95 % interval, and a bound holds where the interval's far end does. With GPUs on NCCL, else on gloo with the CPU, where
the defaults are small and the bounds mean little. Parts, by world size:

all_reduce  GB/s of our timed all-reduce, calls one by one, over those of a bare loop of torch.distributed.all_reduce
ddp         what communication adds to a step (the step less the step with the communication off), overlapped and
            bucketed over naive; their step over torch's DistributedDataParallel's; with a sharded optimizer over plain
optimizer   the sharded optimizer's step over the plain one's; memory that it saves over the prediction

Steps are timed as a training loop runs them ("running"), which the bounds are for; --ways waited times also steps that
are each waited for, which adds the time in which the device waits for the host. --variants picks what takes turns in
ddp: fewer of them leave time for more rounds. Where the host cannot launch an eager step as fast as the device runs it,
a step's time is the host's, and so is its spread; --compile-blocks has each of the model's blocks compiled, so that
the device sets the pace. Exit status 1: a part failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import distributed_ranks as on_rank  # noqa: E402
from perfscribe.analytic.traffic import busbw_gb_per_s  # noqa: E402
from perfscribe.distributed.launch import launch  # noqa: E402
from perfscribe.instruments import statistics  # noqa: E402

PROGRAMS = {"all_reduce": on_rank.all_reduce, "ddp": on_rank.data_parallel, "optimizer": on_rank.optimizers}
SHARE_OF_BUDGET = {"all_reduce": 0.1, "optimizer": 0.2, "ddp": 1.0}  # of what is left; in the order in which they run
START_S = 10.0  # a launch: starting, joining, making the model
PATIENCE_S = 60.0  # beyond its budget until a launch counts as hung
ADAM_STATE_BYTES = 8  # a parameter: two fp32 moments

ALL_REDUCE_BOUND, EXPOSED_BOUND, DDP_BOUND, SHARDED_BOUND, MEMORY_BOUND = 0.97, 0.15, 1.02, 1.00, 0.05


@dataclass(frozen=True)
class Row:
    """One figure beside its bound. at_least: the bound is the least that is good, and the low end counts."""

    what: str
    way: str
    value: float
    low: float | None
    high: float | None
    bound: float | None
    at_least: bool = False
    rounds: int = 0

    @property
    def verdict(self) -> str:
        """yes, no, or why there is none."""
        if self.bound is None:
            return ""
        end = self.low if self.at_least else self.high
        if end is None:
            return f"too few rounds: {self.rounds} of {statistics.ROUNDS_FOR_INTERVAL}"
        return "yes" if (end >= self.bound if self.at_least else end <= self.bound) else "no"


# --- arithmetic -------------------------------------------------------------------------------------------------


def slowest(by_rank: Sequence[on_rank.Blocks]) -> on_rank.Blocks:
    """The longest time of any rank, block by block."""
    return {
        way: {
            name: [max(block) for block in zip(*(blocks[way][name] for blocks in by_rank), strict=True)]
            for name in by_rank[0][way]
        }
        for way in by_rank[0]
    }


def slowest_calls(by_rank: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """The longest time of any rank, call by call, in rounds."""
    return [[max(call) for call in zip(*rounds, strict=True)] for rounds in zip(*by_rank, strict=True)]


def ratio_row(what: str, way: str, over: Sequence[float], under: Sequence[float], bound: float | None) -> Row:
    """Times of one variant over those of another, a value a round."""
    found = statistics.ratio([[ms] for ms in under], [[ms] for ms in over])
    return Row(what, way, found.ratio, found.low, found.high, bound, rounds=found.rounds)


def exposed_row(what: str, way: str, times: Mapping[str, Sequence[float]], name: str, bound: float | None) -> Row:
    """What communication adds to a step of a variant over what it adds to naive's.

    Each round gives both differences; rounds are resampled whole, so that what slows a round hits all four times.
    """
    adds, naive_adds = (
        np.asarray(times[variant]) - np.asarray(times[variant + on_rank.OFF]) for variant in (name, on_rank.NAIVE)
    )
    value = float(np.median(adds) / np.median(naive_adds))
    rounds = len(adds)
    if rounds < statistics.ROUNDS_FOR_INTERVAL:
        return Row(what, way, value, None, None, bound, rounds=rounds)
    drawn = np.random.default_rng(0).integers(0, rounds, (10_000, rounds))
    under = np.median(naive_adds[drawn], axis=1)
    over = np.median(adds[drawn], axis=1)
    ratios = np.where(under > 0, over / np.where(under > 0, under, 1.0), np.inf)  # naive's added nothing: no bound
    tail = (1 - statistics.CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail], method="nearest")
    return Row(what, way, value, float(low), float(high), bound, rounds=rounds)


def all_reduce_rows(by_rank: Sequence[Mapping[str, Any]], world_size: int) -> list[Row]:
    """Bandwidths, and ours over the bare loop's."""
    ours, bare = (slowest_calls([rank["samples"][name] for rank in by_rank]) for name in ("ours", "bare"))
    found = statistics.ratio(bare, ours)  # of times: the bandwidths' is its inverse
    low, high = (None if end is None else 1 / end for end in (found.high, found.low))
    size = by_rank[0]["message_bytes"]
    what = f"all-reduce of {size / 2**20:g} MiB"
    rows = []
    for name, rounds in (("ours", ours), ("bare loop", bare)):
        summary = statistics.summarise(rounds)
        rate = busbw_gb_per_s("all_reduce", world_size, size, summary.median)
        rows.append(Row(f"{what}, {name}: bus GB/s", "calls", rate, None, None, None))
    head = f"{what}: GB/s of ours / bare loop"
    return [*rows, Row(head, "calls", 1 / found.ratio, low, high, ALL_REDUCE_BOUND, True, found.rounds)]


def step_rows(what: str, way: str, times: Mapping[str, Sequence[float]]) -> list[Row]:
    """The median over rounds of each variant."""
    return [Row(f"{what}, {name}: ms", way, float(np.median(ms)), None, None, None) for name, ms in times.items()]


def ddp_rows(by_rank: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Steps of each variant, and the ratios of those that took part; bounds are for steps as a training loop runs."""
    rows = []
    for way, times in slowest([rank["blocks"] for rank in by_rank]).items():
        bounded = way == on_rank.RUNNING
        rows += step_rows("step", way, times)
        ours = [name for name in times if name + on_rank.OFF in times]
        for name in ours:
            adds = np.asarray(times[name]) - np.asarray(times[name + on_rank.OFF])
            rows.append(Row(f"communication added, {name}: ms", way, float(np.median(adds)), None, None, None))
        overlapping = [name for name in ours if name != on_rank.NAIVE]
        for name in overlapping if on_rank.NAIVE in ours else ():
            what = f"communication added, {name} / naive"
            rows.append(exposed_row(what, way, times, name, EXPOSED_BOUND if bounded else None))
        for name in overlapping if on_rank.TORCH in times else ():
            bound = DDP_BOUND if bounded else None
            rows.append(ratio_row(f"step, {name} / torch DDP", way, times[name], times[on_rank.TORCH], bound))
        if on_rank.BUCKETED_SHARDED in times and on_rank.BUCKETED in times:
            both = times[on_rank.BUCKETED_SHARDED], times[on_rank.BUCKETED]
            rows.append(ratio_row("training step, sharded / plain", way, *both, SHARDED_BOUND if bounded else None))
    return rows


def optimizer_rows(by_rank: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The optimizer's step by itself, and the memory of the rank that is furthest from the prediction."""
    rows = []
    for way, times in slowest([rank["blocks"] for rank in by_rank]).items():
        rows += [
            Row(f"optimizer step, {n}: ms", way, float(np.median(ms)), None, None, None) for n, ms in times.items()
        ]
        both = times[on_rank.SHARDED], times[on_rank.PLAIN]
        bound = SHARDED_BOUND if way == on_rank.RUNNING else None
        rows.append(ratio_row("optimizer step, sharded / plain", way, *both, bound))
    predicted = by_rank[0]["parameters"] * ADAM_STATE_BYTES * (1 - 1 / len(by_rank))
    saved = [rank["held_bytes"][on_rank.PLAIN] - rank["held_bytes"][on_rank.SHARDED] for rank in by_rank]
    rows += [Row("state saved a rank, predicted: GiB", "bytes", predicted / 2**30, None, None, None)]
    rows += [Row("state saved a rank, least: GiB", "bytes", min(saved) / 2**30, None, None, None)]
    off = max(abs(bytes_saved / predicted - 1) for bytes_saved in saved) if predicted else float("nan")
    return [*rows, Row("state saved, deviation from the prediction", "bytes", off, off, off, MEMORY_BOUND)]


# --- the run ----------------------------------------------------------------------------------------------------


def measure(part: str, world_size: int, args: argparse.Namespace, budget_s: float) -> list[dict[str, Any]]:
    """What each rank says of a part."""
    arguments = {
        "size": args.size,
        "context": args.context,
        "global_batch": args.global_batch,
        "dtype": args.dtype,
        "bucket_mb": args.bucket_mb,
        "rounds": args.rounds,
        "steps": args.steps,
        "calls": args.calls,
        "ways": args.ways,
        "variants": args.variants,
        "pin": args.pin,
        "compile_blocks": args.compile_blocks,
        "size_bytes": round(args.message_mib * 2**20),
        "budget_s": max(1.0, budget_s - START_S),
    }
    launched = launch(
        PROGRAMS[part], arguments, world_size=world_size, timeout_s=budget_s + PATIENCE_S, backend=args.backend
    )
    return launched.results


def rows_of(part: str, by_rank: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The rows of a part."""
    if part == "all_reduce":
        return all_reduce_rows(by_rank, len(by_rank))
    return ddp_rows(by_rank) if part == "ddp" else optimizer_rows(by_rank)


def table(rows: Sequence[Row], world_size: int) -> str:
    """The rows as Markdown."""
    lines = ["| processes | what | timed | value | 95 % | bound | holds |", "|" + " --- |" * 7]
    for row in rows:
        interval = "" if row.low is None else f"{row.low:.3g} … {row.high:.3g}"
        bound = "" if row.bound is None else f"{'≥' if row.at_least else '≤'} {row.bound:g}"
        cells = [world_size, row.what, row.way, f"{row.value:.4g}", interval, bound, row.verdict]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def arguments_of(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; what is left out fits the machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["nccl", "gloo"], default=None, help="nccl where there are GPUs")
    parser.add_argument("--size", default=None, help="of the model: xl, on gloo nano")
    parser.add_argument("--world-size", type=int, nargs="+", default=None, help="processes: all GPUs, on gloo 2")
    parser.add_argument("--rounds", type=int, default=10, help="turns; an interval needs 6")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a block, in each way")
    parser.add_argument("--calls", type=int, default=10, help="timed all-reduces of a block")
    parser.add_argument("--message-mib", type=float, default=None, help="of the all-reduce: 1024, on gloo 1")
    parser.add_argument("--bucket-mb", type=float, default=None, help="10^6 bytes: 100, on gloo 0.05")
    parser.add_argument("--global-batch", type=int, default=16, help="sequences, divided among the processes")
    parser.add_argument("--context", type=int, default=None, help="tokens of a sequence: 128, on gloo 16")
    parser.add_argument("--dtype", choices=["fp32", "tf32"], default=None, help="tf32, on gloo fp32")
    parser.add_argument("--ways", nargs="+", choices=list(on_rank.TIMERS), default=[on_rank.RUNNING])
    parser.add_argument(
        "--variants", nargs="+", choices=on_rank.VARIANTS, default=list(on_rank.VARIANTS), help="of ddp"
    )
    parser.add_argument("--pin", action="store_true", help="give each process its own share of the processors")
    parser.add_argument("--compile-blocks", action="store_true", help="in ddp: blocks of the model by torch.compile")
    parser.add_argument("--parts", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--budget-s", type=float, default=150.0, help="for the whole run; rounds are left out for it")
    parser.add_argument("--out", type=Path, default=None, help="a JSON file for all figures")
    args = parser.parse_args(argv)
    fill_in(args)
    return args


def fill_in(args: argparse.Namespace) -> None:
    """The defaults of a machine with GPUs or of one without."""
    import torch

    gpus = torch.cuda.device_count() if torch.distributed.is_nccl_available() else 0
    args.backend = args.backend or ("nccl" if gpus > 1 else "gloo")
    on_gpus = args.backend == "nccl"
    defaults: dict[str, tuple[Any, Any]] = {
        "size": ("xl", "nano"),
        "world_size": ([gpus], [2]),
        "message_mib": (1024.0, 1.0),
        "bucket_mb": (100.0, 0.05),
        "context": (128, 16),
        "dtype": ("tf32", "fp32"),
    }
    for name, (gpu_value, cpu_value) in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, gpu_value if on_gpus else cpu_value)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the parts, print a table as each is done; the exit status."""
    args = arguments_of(argv)
    results: list[dict[str, Any]] = []
    end = time.monotonic() + args.budget_s
    for number, world_size in enumerate(args.world_size):
        of_this_size = time.monotonic() + (end - time.monotonic()) / (len(args.world_size) - number)
        for part in sorted(args.parts, key=list(SHARE_OF_BUDGET).index):
            budget_s = max(START_S, (of_this_size - time.monotonic()) * SHARE_OF_BUDGET[part])
            results.append({"part": part, "world_size": world_size} | result(part, world_size, args, budget_s))
            if args.out:
                settings = {name: value for name, value in vars(args).items() if name != "out"}
                args.out.write_text(json.dumps({"settings": settings, "results": results}, indent=1) + "\n")
    return int(any("failed" in one for one in results))


def result(part: str, world_size: int, args: argparse.Namespace, budget_s: float) -> dict[str, Any]:
    """A part's rows and what they came from; an error's first line where it failed."""
    began = time.monotonic()
    try:
        by_rank = measure(part, world_size, args, budget_s)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        print(f"\n{part}, {world_size} processes: {type(error).__name__}: {reason}", flush=True)
        return {"failed": f"{type(error).__name__}: {reason}"}
    rows = rows_of(part, by_rank)
    print(f"\n{part}: {time.monotonic() - began:.1f} s\n{table(rows, world_size)}", flush=True)
    return {"rows": [asdict(row) | {"verdict": row.verdict} for row in rows], "ranks": by_rank}


if __name__ == "__main__":
    raise SystemExit(main())
