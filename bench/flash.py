"""Our Triton flash attention against scaled_dot_product_attention and eager attention, on one GPU, in one run.

bench/flash.py [--quick] [--rounds N] [--tiles TUNED.json] [--budget-s N] [--out FILE]
bench/flash.py --tune [--quick] [--budget-s N] [--out FILE]

Each implementation is first compared with float64; one that is wrong is not timed. Then all of a problem take turns:
every round times each of them by replaying CUDA graphs, L2 flushed before each replay, and the ratio of ours to each
other is that of medians over rounds, with its 95 % interval. FLOP: 4 n² d a head for forward, 2.5 times that for
backward, half of it all for a causal mask. Exit status 1: ours was wrong somewhere.

--tune searches tiles instead (bench/flash_tune.py) and writes what it found, which --tiles takes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import flash_tune  # noqa: E402
from perfscribe import statistics  # noqa: E402
from perfscribe.attention import backends, triton_configs  # noqa: E402
from perfscribe.attention.triton_kernels import FlashAttentionTriton  # noqa: E402
from perfscribe.cells import Unsupported  # noqa: E402
from perfscribe.experiments.flash_benchmarking.correctness import Check  # noqa: E402
from perfscribe.experiments.flash_benchmarking.passes import Problem  # noqa: E402
from perfscribe.graph_timing import CudaGraphs, calls_in_a_graph  # noqa: E402

ROUND_MS = 25.0  # of replays, an implementation and round
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
TOLERANCE = {"bf16": 2e-2, "ieee": 1e-4, "tf32x3": 1e-4, "tf32": 1e-2}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One problem; products: "bf16" or how fp32 products are made; others: the implementations to compare with."""

    name: str
    heads: int
    n: int
    d: int
    products: str
    passes: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def flop(self) -> dict[str, float]:
        """FLOP of each pass, causal."""
        forward = 4 * self.heads * self.n**2 * self.d / 2
        return {"forward": forward, "backward": 2.5 * forward, "both": 3.5 * forward}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tensors."""
        return DTYPES["bf16" if self.products == "bf16" else "fp32"]


def cells(quick: bool) -> Iterator[Cell]:
    """The leaderboard's problem, the bf16 grid of one head, and fp32 against eager."""
    sdpa = ("sdpa_flash", "sdpa_cudnn")
    yield Cell("leaderboard", 16, 16384, 64, "bf16", ("both", "forward", "backward"), sdpa)
    lengths = (4096, 16384, 65536) if quick else (4096, 8192, 16384, 32768, 65536)
    for n in reversed(lengths):
        for d in (128, 64):
            yield Cell("one head", 1, n, d, "bf16", ("forward", "backward"), sdpa)
    for n in (1024, 4096) if quick else (1024, 2048, 4096, 8192, 16384):
        for d in (64, 128):
            for products in ("ieee", "tf32x3", "tf32"):
                yield Cell("one head", 1, n, d, products, ("forward", "backward"), ("eager",))


def our_call(settings: dict[str, Any]) -> backends.Call:
    """Our attention under the settings given."""

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool) -> torch.Tensor:
        with triton_configs.using(**settings):
            out: torch.Tensor = FlashAttentionTriton.apply(q, k, v, is_causal)
        return out

    return call


def settings_of(cell: Cell, tuned: list[dict]) -> dict[str, Any]:
    """Our settings for a cell: those of the most similar tuned problem, else the defaults."""
    settings = flash_tune.best_settings(tuned, cell.heads, cell.n, cell.d, cell.products)
    return settings if cell.products == "bf16" else settings | {"float32_products": cell.products}


def cases_of(cell: Cell, tuned: list[dict], multiprocessors: int) -> list[dict]:
    """What our passes of a cell compile, as bench/flash_compile.py takes it."""
    settings = settings_of(cell, tuned)
    tiles = {kernel: dataclasses.asdict(tile) for kernel, tile in settings.get("tiles", {}).items()}
    case: dict[str, Any] = {"dtype": "bf16" if cell.products == "bf16" else "fp32", "d": cell.d, "n": [cell.n, cell.n]}
    case |= {"heads": cell.heads, "multiprocessors": multiprocessors, "tiles": tiles}
    case |= {"products": settings.get("float32_products"), "backward": settings.get("backward")}
    return [case | {"pass": side} for side in ("forward", "backward")]


def calls_of(cell: Cell, tuned: list[dict]) -> tuple[dict[str, backends.Call], dict[str, str]]:
    """The implementations of a cell that run, and why others do not."""
    calls, reasons = {"ours": our_call(settings_of(cell, tuned))}, {}
    for name in cell.others:
        try:
            calls[name] = backends.make_call(name, "cuda", cell.dtype, cell.d, True)
        except Unsupported as reason:
            reasons[name] = str(reason)
    return calls, reasons


def checked(call: backends.Call, inputs: tuple[torch.Tensor, ...], tolerance: float) -> float:
    """The largest relative error of output and gradients against float64; ValueError beyond the tolerance."""
    leaves = tuple(x.clone().requires_grad_() for x in inputs[:3])
    check = Check(lambda q, k, v: call(q, k, v, True), leaves, tolerance)
    check.both()
    return max(check.largest_error().values())


def in_turns(makes: dict[str, Callable[[], Any]], rounds: int, graphs: CudaGraphs) -> dict[str, list[list[float]]]:
    """Rounds of samples, ms a call, of each implementation."""
    with contextlib.ExitStack() as stack:
        captured = {}
        for name, make in makes.items():
            with graphs.capture(make, 1) as probe:
                call_ms = min(probe.replay_ms(3))
            calls = calls_in_a_graph(call_ms)
            captured[name] = (
                stack.enter_context(graphs.capture(make, calls)),
                calls,
                max(3, int(ROUND_MS / call_ms / calls)),
            )
        samples: dict[str, list[list[float]]] = {name: [] for name in makes}
        for graph, _, _ in captured.values():
            graph.replay_ms(2)
        for _ in range(rounds):
            for name, (graph, calls, times) in captured.items():
                samples[name].append([ms / calls for ms in graph.replay_ms(min(times, 50))])
    return samples


def rows_of(cell: Cell, tuned: list[dict], rounds: int, graphs: CudaGraphs) -> Iterator[dict[str, Any]]:
    """A row for each pass and other implementation."""
    torch.set_float32_matmul_precision("high" if cell.products == "tf32" else "highest")
    calls, reasons = calls_of(cell, tuned)
    q, k, v, d_out = inputs = tuple(
        torch.randn(1, cell.heads, cell.n, cell.d, device="cuda", dtype=cell.dtype) for _ in range(4)
    )
    base = {"problem": cell.name, "heads": cell.heads, "seq_len": cell.n, "head_dim": cell.d, "products": cell.products}
    errors = {}
    for name in list(calls):
        try:
            errors[name] = checked(calls[name], inputs, TOLERANCE[cell.products])
        except Exception as error:
            reasons[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            del calls[name]
    for name, reason in reasons.items():
        yield base | {"implementation": name, "status": reason}
    if "ours" not in calls:
        return
    for each in cell.passes:
        problems = {name: Problem(call, (q, k, v, d_out), True) for name, call in calls.items()}
        makes = {name: getattr(problem, each) for name, problem in problems.items()}
        samples = in_turns(makes, rounds, graphs)
        for name in samples:
            yield base | _row(each, name, samples, cell.flop[each], errors[name])


def _row(each: str, name: str, samples: dict[str, list[list[float]]], flop: float, error: float) -> dict[str, Any]:
    summary = statistics.summarise(samples[name])
    row: dict[str, Any] = {"pass": each, "implementation": name, "status": "ok", "ms": summary.median}
    row |= {"tflops": flop / summary.median / 1e9, "error": error, "rounds_ms": samples[name]}
    if name != "ours":
        ratio = statistics.ratio(samples[name], samples["ours"])
        row |= {"ours_over_it": ratio.ratio, "low": ratio.low, "high": ratio.high, "ours_is": ratio.verdict}
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    headers = ["problem", "heads × n × d", "products", "pass", "implementation", "ms", "TFLOP/s", "ours / it", "95 %",
               "ours is", "error"]  # fmt: skip
    lines = ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)]
    for row in rows:
        shape = f"{row['heads']} × {row['seq_len']} × {row['head_dim']}"
        values = [row["problem"], shape, row["products"], row.get("pass", ""), row["implementation"]]
        if row["status"] == "ok":
            values += [f"{row['ms']:.4g}", f"{row['tflops']:.0f}"]
            interval = f"{row['low']:.3f} … {row['high']:.3f}" if row.get("low") is not None else ""
            ratio = f"{row['ours_over_it']:.3f}" if "ours_over_it" in row else ""
            values += [ratio, interval, row.get("ours_is", ""), f"{row['error']:.1e}"]
        else:
            values += [row["status"], "", "", "", "", ""]
        lines.append("| " + " | ".join(str(value) for value in values) + " |")
    return "\n".join(lines)


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the cells within the budget; every cell's rows are printed as they come."""
    tuned = json.loads(args.tiles.read_text())["found"] if args.tiles else []
    end = time.monotonic() + args.budget_s
    count = torch.cuda.get_device_properties(0).multi_processor_count
    cases = [case for cell in cells(args.quick) for case in cases_of(cell, tuned, count)]
    flash_tune.precompile(cases, capability(), args.budget_s / 4)
    graphs = CudaGraphs()
    rows: list[dict[str, Any]] = []
    for cell in cells(args.quick):
        if time.monotonic() > end:
            rows.append({**dataclasses.asdict(cell), "problem": cell.name, "seq_len": cell.n, "head_dim": cell.d,
                         "implementation": "all", "status": "not run: out of time"})  # fmt: skip
            continue
        new = list(rows_of(cell, tuned, args.rounds, graphs))
        print(table(new), flush=True)
        rows += new
        torch.cuda.empty_cache()
    return rows


def capability() -> int:
    """Compute capability of the device, 90 for Hopper."""
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def main() -> int:
    """Tune or compare; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer lengths, and no fp32 in --tune")
    parser.add_argument("--tune", action="store_true", help="search tiles in place of the comparison")
    parser.add_argument("--tiles", type=Path, default=None, help="what --tune --out wrote: take its best tiles")
    parser.add_argument("--rounds", type=int, default=7, help="turns of the comparison; an interval needs 6")
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
        wrong = False
    else:
        rows = compare(args)
        keep({"rows": rows})
        print("\n" + table(rows))
        wrong = any(row["implementation"] == "ours" and row["status"] != "ok" for row in rows)
    return int(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
