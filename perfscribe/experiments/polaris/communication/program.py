"""Runs on ranks: turns of nn.Transformer training steps under the torch profiler; one rank with and without it.

The ranks of a placement stay between turns, with model and optimizer, so that turns of the two can alternate.
"""

from __future__ import annotations

import csv
import gc
import gzip
import io
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from perfscribe.analytic.shapes import Seq2SeqShape
from perfscribe.base import files
from perfscribe.base.cells import read
from perfscribe.distributed import links
from perfscribe.distributed.ddp import BY_NAME, DataParallel
from perfscribe.experiments.polaris.communication.measure import Profiled
from perfscribe.instruments import precision
from perfscribe.instruments.profiling.families import COMMUNICATION, GLOO, family
from perfscribe.instruments.profiling.summary import Span, length_ns, merged
from perfscribe.instruments.profiling.torch_profiler import KINDS, events_of, span_ns
from perfscribe.instruments.timing import synchronise
from perfscribe.models.seq2seq import make_seq2seq

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank

    Ready = Callable[[torch.profiler.profile], None]

LEARNING_RATE = 1e-3  # the homework's, times the world size
DATA_SEED = 0
PLAIN, FIRST, AGAIN = "plain", "first_profiled", "profiled"
OPERATOR_COLUMNS = ("name", "calls", "host_us", "own_host_us", "device_us", "own_device_us")
COMPRESSION = 5  # stronger compression takes longer than profiling
_TRAININGS: dict[Profiled, ProfiledTraining] = {}


class ProfiledTraining:
    """Data-parallel training of nn.Transformer: Adam, cross-entropy against float targets, batches on the host.

    source (batch, source_length, features) and target (batch, target_length, features); the loss treats the target's
    positions as classes: a workload, not a task. Each rank has different samples.
    """

    def __init__(self, of: Profiled, rank: Rank) -> None:
        torch.manual_seed(DATA_SEED + rank.place.rank)
        self.device = rank.device
        lengths = (of.source_length, of.target_length)
        self._batches = [[torch.rand(of.batch, length, of.features) for length in lengths] for _ in range(of.batches)]
        shape = Seq2SeqShape(of.features, encoder_layers=of.layers, decoder_layers=of.layers, d_ff=of.d_ff)
        model = make_seq2seq(shape, device=rank.device)
        self.gradient_bytes = sum(tensor.nbytes for tensor in model.parameters())
        with torch.cuda.device(rank.device) if rank.device.type == "cuda" else nullcontext():
            # PyTorch's DDP has its defaults, as in the homework; the module is on its device already.
            self.model = BY_NAME.get(of.implementation, DistributedDataParallel)(model)
        self.criterion = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE * rank.place.world_size)
        self._next = 0

    def step(self) -> None:
        """Run the homework's step: copy a batch to the device, forward, loss, backward, average, Adam."""
        source, target = (part.to(self.device) for part in self._batches[self._next % len(self._batches)])
        self._next += 1
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(source, target), target)
        loss.backward()
        if isinstance(self.model, DataParallel):  # PyTorch's DDP synchronises within backward
            self.model.finish_gradient_synchronization()
        self.optimizer.step()

    def release(self) -> None:
        """Remove the hooks from the module, and free its wrapper."""
        if isinstance(self.model, DataParallel):
            self.model.release()
        del self.model


def training_of(of: Profiled, rank: Rank) -> ProfiledTraining:
    """Return the training with these factors, kept until others are requested."""
    if of not in _TRAININGS:
        while _TRAININGS:
            _TRAININGS.popitem()[1].release()
        gc.collect()
        precision.set_matmul_precision(of.dtype)
        _TRAININGS[of] = ProfiledTraining(of, rank)
    return _TRAININGS[of]


def profiler_of(
    steps: tuple[int, int, int], device: torch.device, ready: Ready, detailed: bool
) -> torch.profiler.profile:
    """Return the homework's profiler, once, with shapes.

    steps: to wait, of warm-up, active.
    detailed: also memory, as in the homework; only on a GPU, because on a CPU it would be most of a trace.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    wait, warmup, active = steps
    return torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        on_trace_ready=ready,
        record_shapes=True,
        profile_memory=detailed and device.type == "cuda",
    )


# --- a turn of a placement's ranks ------------------------------------------------------------------------------


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Run one turn: the schedule's steps, of which the active ones are read from the trace.

    arguments: factors; keep: path prefix of files that stay on this machine, or "". They are not published, because a
    trace names the host.
    """
    of, keep = read(arguments["factors"], Profiled), arguments["keep"]
    training = training_of(of, rank)
    with tempfile.TemporaryDirectory(prefix="kineto-") as folder:
        path = Path(folder) / "trace.json"

        def ready(profiler: torch.profiler.profile) -> None:
            profiler.export_chrome_trace(str(path))
            if keep:
                with _no_collection():
                    base = f"{keep}-rank{rank.place.rank}"
                    Path(base).parent.mkdir(parents=True, exist_ok=True)
                    files.write_bytes(Path(f"{base}.json.gz"), gzip.compress(path.read_bytes(), COMPRESSION, mtime=0))
                    write_operators(profiler, Path(f"{base}.csv"))

        dist.barrier()
        synchronise(rank.device)
        step_ms = _steps(training, of, rank, ready, bool(keep))[-of.active :]
        with _no_collection():
            traced = read_trace(path, rank.device.type)
    link = links.recorded(0, 1) if keep and rank.device.type == "cuda" else {"link": links.NOT_KNOWN}
    return {"gradient_bytes": training.gradient_bytes, "step_ms": step_ms, "link": link, **traced}


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection, which the thousands of new objects of a trace would trigger repeatedly."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _steps(training: ProfiledTraining, of: Profiled, rank: Rank, ready: Ready, detailed: bool) -> list[float]:
    """Return each step's host-clock milliseconds; each ends with a synchronise, so that traces contain it whole."""
    steps, spent = (of.wait, of.warmup_steps, of.active), []
    with profiler_of(steps, rank.device, ready, detailed) as profiler:
        for _ in range(sum(steps)):
            began = time.perf_counter()
            training.step()
            synchronise(rank.device)
            spent.append((time.perf_counter() - began) * 1e3)
            profiler.step()
    return spent


def write_operators(profiler: Any, path: Path) -> None:
    """Write the profiler's averages as CSV, longest self time on the device first, then on the host; times in µs."""
    times = ("cpu_time_total", "self_cpu_time_total", "device_time_total", "self_device_time_total")
    rows = [(one.key, one.count, *(getattr(one, name) for name in times)) for one in profiler.key_averages()]
    rows.sort(key=lambda row: (-row[5], -row[3]))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([OPERATOR_COLUMNS, *rows])
    files.write_text(path, text.getvalue())


# --- a rank's trace ---------------------------------------------------------------------------------------------


def read_trace(path: Path, device: str) -> dict[str, Any]:
    """Return a Chrome trace's collectives (calls, as in measure.Said) and compute_ms, all other work.

    Collectives: NCCL's kernels; on a CPU the work of gloo's threads. Other work: kernels, copies and memsets; on a CPU
    the time of threads in operators other than c10d's, nested operators counted once.
    Raises ValueError if there is no trace.
    """
    events = events_of(path)
    if device == "cuda":
        work = [event for event in events if event.get("cat") in KINDS]
        sent = [event for event in work if event["cat"] == "kernel" and family(event["name"]) == COMMUNICATION]
        compute_ns = length_ns(span_ns(event) for event in work if family(event["name"]) != COMMUNICATION)
    else:
        sent = [event for event in events if event.get("cat") == "user_annotation" and event["name"].startswith(GLOO)]
        compute_ns = _in_operators(events)
    spans = [(_elements(event.get("args", {}), device), *span_ns(event)) for event in sent]
    calls = [(elements, start, end - start) for elements, start, end in spans]
    return {"calls": calls, "compute_ms": compute_ns / 1e6}


def _elements(told: Mapping[str, Any], device: str) -> int:
    """Return the elements of a collective's message: as NCCL's kernel records, or of all tensors passed to gloo."""
    if device == "cuda":
        return int(told.get("In msg nelems") or 0)
    dims = [one for one in told.get("Input Dims", []) if isinstance(one, list)]
    return sum(prod(one) for one in dims if all(isinstance(size, int) for size in one))


def _in_operators(events: Iterable[Mapping[str, Any]]) -> int:
    """Return the time of threads in operators other than c10d's, in ns; nested operators count once."""
    threads: dict[Any, list[Span]] = defaultdict(list)
    for one in events:
        name = one["name"]
        if one.get("cat") == "cpu_op" and "::" in name and not name.startswith(("c10d::", "autograd::", "torch::")):
            threads[one["tid"]].append(span_ns(one))
    return sum(length_ns(merged(spans)) for spans in threads.values())


# --- a single rank, profiled and not ----------------------------------------------------------------------------


def on_single_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, list[float]]:
    """Return seconds of whole trainings as <training>_train_s: PLAIN, AGAIN, and FIRST, the process's first profile."""
    of = read(arguments["factors"], Profiled)
    if rank.device.type == "cpu":
        torch.set_num_threads(1)  # as each of two ranks has on two cores; more threads wait for each other
    training = training_of(of, rank)
    for _ in range(of.warmup_steps + 1):
        training.step()
    samples: dict[str, list[float]] = defaultdict(list)
    samples[f"{FIRST}_train_s"].append(_train(training, of, rank, profiled=True))
    for turn in range(of.trainings):
        for name in (PLAIN, AGAIN) if turn % 2 == 0 else (AGAIN, PLAIN):
            samples[f"{name}_train_s"].append(_train(training, of, rank, profiled=name == AGAIN))
    return dict(samples)


def _train(training: ProfiledTraining, of: Profiled, rank: Rank, profiled: bool) -> float:
    """Return wall seconds of the loop, within which the profile's trace is written, as in the homework."""
    steps = (of.wait, of.warmup_steps, of.active)
    with tempfile.TemporaryDirectory(prefix="kineto-") as folder:

        def ready(profiler: torch.profiler.profile) -> None:
            profiler.export_chrome_trace(f"{folder}/trace.json")

        synchronise(rank.device)
        began = time.perf_counter()
        with profiler_of(steps, rank.device, ready, detailed=True) if profiled else nullcontext() as profiler:
            for _ in range(of.training_steps):
                training.step()
                if profiler is not None:
                    profiler.step()
        synchronise(rank.device)
        return time.perf_counter() - began
