"""What each rank of a ddp cell does: check, time all implementations interleaved, trace a step of each.

Of each turn of an implementation: it is put around the module anew, which makes all replicas equal again; steps to warm
up; then steps with communication and without, in an order that is reversed from turn to turn; then, for some, one step
whose phases are timed, for which the device is waited for after each of them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from perfscribe.analytic.shapes import SIZES
from perfscribe.data import tokens
from perfscribe.experiments.ddp import check, tracing
from perfscribe.experiments.ddp import variants as v
from perfscribe.experiments.ddp.wrapped import Wrapped
from perfscribe.instruments import precision
from perfscribe.instruments.timing import HOST_CLOCK, Mark, synchronise, time_host, time_phases
from perfscribe.models.training_step import Step
from perfscribe.models.transformer import Model, next_token_loss

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank

COPIES = ("flatten", "unflatten")


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """What this rank has to say of every implementation; names of samples and values are those of measure.combine."""
    factors, of = arguments["factors"], v.from_level(arguments["factors"]["variants"])
    precision.set_matmul_precision(factors["dtype"])
    whole = tokens.read(Path(arguments["data_folder"]), factors["batch"], factors["seq_len"])
    token_ids = torch.from_numpy(whole).to(rank.device)
    found = Found()
    for key, error in check.errors(of, factors, token_ids, rank).items():
        found.values[f"{key}_error"] = error
    bench = Bench(factors, check.share(token_ids, rank), rank, found)
    for turn in range(factors["turns"]):
        for variant in of if turn % 2 == 0 else reversed(of):
            bench.take_turn(variant, turn)
    if factors["traced"]:
        for variant in v.traced(of):
            bench.trace(variant)
    return vars(found) | {"timer": HOST_CLOCK}


@dataclass
class Found:
    """What a rank has measured so far."""

    samples: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    warmup: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    values: dict[str, float] = field(default_factory=dict)
    traced_values: dict[str, Any] = field(default_factory=dict)
    series: dict[str, list[Any]] = field(default_factory=dict)
    warmup_s: float = 0.0
    timed_s: float = 0.0


class Bench:
    """One model, its optimizer and this rank's part of the batch, around which implementations take turns."""

    def __init__(self, factors: Mapping[str, Any], token_ids: torch.Tensor, rank: Rank, found: Found) -> None:
        self.factors, self.rank, self.found = factors, rank, found
        model = Model(SIZES[factors["size"]], factors["seq_len"], device=rank.device)
        self.training = Step(model, token_ids, factors["device"], factors["dtype"])
        self.training.make_optimizer()
        sizes = [tensor.nbytes for tensor in model.parameters()]
        found.values |= {"parameter_tensors": len(sizes), "gradient_bytes": sum(sizes)}

    def take_turn(self, variant: v.Variant, turn: int) -> None:
        """Warm up, then time steps with communication and without, and phases."""
        wrapped = Wrapped(variant, self.training.model)
        counted = self._warm_up(wrapped)
        if turn == 0:
            self.found.values |= {f"{variant.key}_{name}": one for name, one in counted.items()}
            check.require_equal_gradients(self.training.model, variant.key)
        began = time.perf_counter()
        order = ["step", "off"] * self.factors["steps"]
        for name in order if turn % 2 == 0 else reversed(order):
            with wrapped.without_communication() if name == "off" else nullcontext():
                self._time(wrapped, f"{variant.key}_{name}_ms")
        if variant.implementation in v.PHASED:
            self._time_phases(wrapped)
        self.found.timed_s += time.perf_counter() - began
        wrapped.release()

    def trace(self, variant: v.Variant) -> None:
        """Trace one step, replicas being equal."""
        wrapped = Wrapped(variant, self.training.model)
        self._warm_up(wrapped)
        seen = tracing.record(self.prepare, lambda mark: self.step(wrapped, mark), self.factors["device"])
        lanes = tracing.lanes(seen, self.rank.place.world_size, self.factors["device"])
        self.found.traced_values |= {f"{variant.key}_{name}": one for name, one in lanes.values().items()}
        if self.rank.place.rank == 0:
            self.found.series |= {f"{variant.key}_{name}": one for name, one in lanes.series().items()}
        wrapped.release()

    def prepare(self) -> None:
        """No gradients; all ranks here."""
        self.training.zero_grad()
        synchronise(self.rank.device)
        dist.barrier()

    def step(self, wrapped: Wrapped, mark: Mark) -> None:
        """A training step; mark(name) at the end of each phase, communication being what finish() has left to do."""
        training = self.training
        with training.autocast():
            loss = next_token_loss(wrapped.call, training.inputs, training.targets)
        mark("forward")
        training.scaler.scale(loss).backward()
        del loss
        mark("backward")
        wrapped.finish()
        mark("communication")
        training.scaler.step(training.optimizer)
        training.scaler.update()
        mark("optimizer")

    def _warm_up(self, wrapped: Wrapped) -> dict[str, float]:
        """Steps before the timed ones; all-reduces, buckets and peak memory of the last, whose gradients are left."""
        # PyTorch's arranges its buckets anew in its second step.
        steps = self.factors["warmup_steps"] + (wrapped.variant.implementation == v.TORCH)
        device, on_gpu = self.rank.device, self.rank.device.type == "cuda"
        began, counted = time.perf_counter(), dict[str, float]()
        for _ in range(steps):
            if on_gpu:
                torch.cuda.reset_peak_memory_stats(device)
            timing = time_host(
                lambda: self.step(wrapped, _unmarked), warmup=0, timed=1, device=device, prepare=self.prepare
            )
            self.found.warmup[f"{wrapped.variant.key}_step_ms"] += timing.samples_ms
            counted = wrapped.facts()
            if on_gpu:
                counted["peak_bytes"] = torch.cuda.max_memory_allocated(device)
        self.found.warmup_s += time.perf_counter() - began
        return counted

    def _time(self, wrapped: Wrapped, name: str) -> None:
        timing = time_host(
            lambda: self.step(wrapped, _unmarked), warmup=0, timed=1, device=self.rank.device, prepare=self.prepare
        )
        self.found.samples[name] += timing.samples_ms

    def _time_phases(self, wrapped: Wrapped) -> None:
        key, spent_ms = wrapped.variant.key, dict.fromkeys(COPIES, 0.0)
        if wrapped.variant.implementation == v.FLAT and wrapped.ours is not None:
            wrapped.ours.around = lambda part: _stopwatch(part, spent_ms, self.rank.device)
        phases = time_phases(
            lambda mark: self.step(wrapped, mark), warmup=0, timed=1, device=self.rank.device, prepare=self.prepare
        )
        for phase, timing in phases.items():
            name = "marked_step" if phase == "step" else phase
            self.found.samples[f"{key}_{name}_ms"] += timing.samples_ms
        if wrapped.variant.implementation == v.FLAT:
            self.found.samples[f"{key}_copies_ms"].append(sum(spent_ms.values()))


@contextmanager
def _stopwatch(part: str, spent_ms: dict[str, float], device: torch.device) -> Iterator[None]:
    """Adds the milliseconds of a part that is asked for; the device is waited for before and after it."""
    if part not in spent_ms:
        yield
        return
    synchronise(device)
    began = time.perf_counter()
    yield
    synchronise(device)
    spent_ms[part] += (time.perf_counter() - began) * 1e3


def _unmarked(_: str) -> None:
    """A mark for steps whose phases nobody times."""
