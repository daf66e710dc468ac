"""Checks that the tool does not slow what it measures: bare loops in turn with ours, on the same device.

bench/bare.py [--tiny]

training: an epoch of the Polaris homework's loop, nn.Transformer with a DataLoader, against ours. attention: forward
and backward of plain PyTorch attention by triton.testing.do_bench, against ours with launches; needs a GPU. TURNS turns
that alternate in order, a ratio of each, as a shared host's speed drifts. --tiny: sizes for a CPU. Exit status 1 if a
median of ratios is off by more than WITHIN.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from perfscribe.attention import backends  # noqa: E402
from perfscribe.experiments.cs336.flash_benchmarking.measure import Problem  # noqa: E402
from perfscribe.instruments.graph_timing import time_launched  # noqa: E402
from perfscribe.models.seq2seq_training import Job, Seq2SeqTraining  # noqa: E402

TURNS = 10
WITHIN = 0.05
LENGTHS = (16384, 32768)  # shorter ones compare launches, which vary between turns
WIDTH = 64


def bare_epoch(job: Job) -> Callable[[], float]:
    """Return an epoch of the loop as the homework has it, which returns its seconds."""
    model = nn.Transformer(
        job.d_model, 8, job.layers, job.layers, job.d_ff, batch_first=True, device=job.device
    ).train()
    source = torch.rand(job.samples, job.source_length, job.d_model)
    target = torch.rand(job.samples, job.target_length, job.d_model)
    loader = DataLoader(TensorDataset(source, target), shuffle=True, batch_size=job.batch)
    optimizer, criterion = torch.optim.Adam(model.parameters(), lr=1e-3), nn.CrossEntropyLoss()

    def epoch() -> float:
        _wait(job.device)
        start = time.perf_counter()
        for source, target in loader:
            source, target = source.to(job.device), target.to(job.device)
            optimizer.zero_grad()
            criterion(model(source, target), target).backward()
            optimizer.step()
        _wait(job.device)
        return time.perf_counter() - start

    return epoch


def bare_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Return attention of one head, q, k and v (n, d); mask (n, n), True where a query sees a key."""
    scores = torch.where(mask, (q / q.shape[-1] ** 0.5) @ k.T, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def compared(what: str, bare: Callable[[], float], ours: Callable[[], float]) -> list[object]:
    """Return a row: medians of both, the turns' ratios by median and range, whether the median is within the bound."""
    bare(), ours()  # warm up
    times: dict[Callable[[], float], list[float]] = {bare: [], ours: []}
    for turn in range(TURNS):
        for call in (bare, ours) if turn % 2 == 0 else (ours, bare):
            times[call].append(call())
    ratios = [own / other for own, other in zip(times[ours], times[bare], strict=True)]
    ratio = median(ratios)
    span = f"{min(ratios):.3f} to {max(ratios):.3f}"
    return [what, median(times[bare]), median(times[ours]), ratio, span, "yes" if abs(ratio - 1) <= WITHIN else "NO"]


def main() -> int:
    """Print the table; 1 if a ratio is beyond the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    tiny = parser.parse_args().tiny
    device = "cuda" if torch.cuda.is_available() else "cpu"
    d_model, layers, d_ff, samples = (64, 1, 128, 256) if tiny else (512, 6, 2048, 2048)
    job = Job(device, d_model, layers, d_ff, 1, 20, samples, batch=32, epochs=1, features=d_model, batches="per_sample")
    ours = Seq2SeqTraining(job)
    rows = [compared("epoch of training (s)", bare_epoch(job), lambda: ours.epoch().time_s)]
    if device == "cuda":
        rows += [attention(n) for n in LENGTHS]
    headers = ["", "bare", "ours", "ours / bare", "in single turns", f"within {WITHIN:.0%}"]
    print(tabulate(rows, headers, tablefmt="pipe", floatfmt=".4g"))
    return int(any(row[-1] == "NO" for row in rows))


def attention(n: int) -> list[object]:
    """Return the row of attention over n tokens, BF16."""
    from triton.testing import do_bench

    inputs = (_random(n), _random(n), _random(n), _random(n))
    q, k, v = (tensor[0, 0].clone().requires_grad_() for tensor in inputs[:3])
    mask = torch.ones(n, n, dtype=torch.bool, device="cuda").tril()

    def both() -> None:
        torch.autograd.grad(bare_attention(q, k, v, mask), (q, k, v), inputs[3][0, 0])

    problem = Problem(backends.make_call("eager", "cuda", torch.bfloat16, WIDTH, True), inputs, True)
    return compared(
        f"attention, {n} tokens (ms)",
        lambda: float(do_bench(both, return_mode="median")),
        lambda: time_launched(problem.both, call_ms=0, turns=1).samples_ms[0],
    )


def _random(n: int) -> Tensor:
    return torch.randn(1, 1, n, WIDTH, device="cuda", dtype=torch.bfloat16)


if __name__ == "__main__":
    sys.exit(main())
