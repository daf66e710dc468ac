"""What the ranks of a placement do: one turn of training steps of nn.Transformer under the torch profiler.

The ranks stay between turns, and with them model and optimizer, so that turns of the two placements can alternate.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from perfscribe.analytic.shapes import Seq2SeqShape
from perfscribe.distributed.link_rates import visible_rates
from perfscribe.experiments.communication import artefacts, reading
from perfscribe.experiments.communication.wrapping import Wrapped
from perfscribe.instruments import precision
from perfscribe.instruments.timing import synchronise
from perfscribe.models.seq2seq import make_seq2seq

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfscribe.distributed.rank import Rank

LEARNING_RATE = 1e-3  # the homework's, times the world size
DATA_SEED = 0
_TRAININGS: dict[str, Training] = {}


class Training:
    """nn.Transformer kept equal on all ranks, Adam, cross-entropy against float targets, batches on the host.

    source (batch, source_length, features) and target (batch, target_length, features); the loss takes the positions
    of the target for classes: a load, not a task. Each rank has samples of its own.
    """

    def __init__(self, factors: Mapping[str, Any], rank: Rank) -> None:
        torch.manual_seed(DATA_SEED + rank.place.rank)
        self.device, world_size = rank.device, rank.place.world_size
        features, layers, batch = (factors[name] for name in ("features", "layers", "batch"))
        self._batches = [
            [torch.rand(batch, factors[f"{name}_length"], features) for name in ("source", "target")]
            for _ in range(factors["batches"])
        ]
        shape = Seq2SeqShape(features, encoder_layers=layers, decoder_layers=layers, d_ff=factors["d_ff"])
        model = make_seq2seq(shape, device=rank.device)
        self.gradient_bytes = sum(tensor.nbytes for tensor in model.parameters())
        self.wrapped = Wrapped(factors["implementation"], model)
        self.criterion = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE * world_size)
        self._next = 0

    def step(self) -> None:
        """The homework's step: copy a batch to the device, forward, loss, backward, average, Adam."""
        source, target = (part.to(self.device) for part in self._batches[self._next % len(self._batches)])
        self._next += 1
        self.optimizer.zero_grad()
        loss = self.criterion(self.wrapped.call(source, target), target)
        loss.backward()
        self.wrapped.finish()
        self.optimizer.step()


def training_of(factors: Mapping[str, Any], rank: Rank) -> Training:
    """The training of these factors, which stays until others are asked for."""
    key = repr(sorted(factors.items()))
    if key not in _TRAININGS:
        for old in _TRAININGS.values():
            old.wrapped.release()
        _TRAININGS.clear()
        gc.collect()
        precision.set_matmul_precision(factors["dtype"])
        _TRAININGS[key] = Training(factors, rank)
    return _TRAININGS[key]


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """One turn: the schedule's steps, of which the active ones are read from the trace.

    arguments: factors; keep: folder and beginning of the names of files to keep.
    """
    factors, keep = arguments["factors"], arguments["keep"]
    training = training_of(factors, rank)
    found: dict[str, Any] = {"gradient_bytes": training.gradient_bytes}
    with tempfile.TemporaryDirectory(prefix="kineto-") as folder:
        path = Path(folder) / "trace.json"

        def ready(profiler: torch.profiler.profile) -> None:
            profiler.export_chrome_trace(str(path))
            if keep:
                with _no_collection():
                    base = f"{keep}-rank{rank.place.rank}"
                    found["operators"] = artefacts.keep(profiler, path, base, rank.device.type)

        dist.barrier()
        synchronise(rank.device)
        found["step_ms"] = _steps(training, factors, rank, ready, bool(keep))[-factors["active"] :]
        with _no_collection():
            found |= reading.read(path, rank.device.type)
    found["links"] = [vars(link) for link in visible_rates(2)] if keep and rank.device.type == "cuda" else []
    return found


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without garbage collection, which a trace's thousands of new objects set off again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def profiler_of(
    factors: Mapping[str, Any],
    device: torch.device,
    ready: Callable[[torch.profiler.profile], None] | None,
    detailed: bool,
) -> torch.profiler.profile:
    """The homework's profiler: wait, warm-up, active, once, with shapes.

    detailed: with memory too, as the homework has it; on a GPU alone, as on a CPU that would be most of a trace.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(
            wait=factors["wait"], warmup=factors["warmup_steps"], active=factors["active"], repeat=1
        ),
        on_trace_ready=ready,
        record_shapes=True,
        profile_memory=detailed and device.type == "cuda",
    )


def _steps(
    training: Training,
    factors: Mapping[str, Any],
    rank: Rank,
    ready: Callable[[torch.profiler.profile], None],
    detailed: bool,
) -> list[float]:
    """Milliseconds of each step by the host clock; the device is waited for at its end, so that traces hold it "
    "whole."""
    spent = []
    with profiler_of(factors, rank.device, ready, detailed) as profiler:
        for _ in range(factors["wait"] + factors["warmup_steps"] + factors["active"]):
            began = time.perf_counter()
            training.step()
            synchronise(rank.device)
            spent.append((time.perf_counter() - began) * 1e3)
            profiler.step()
    return spent
