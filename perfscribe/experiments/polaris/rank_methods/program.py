"""Runs on each rank: the place that every method finds, and the Polaris homework's data-parallel training."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from perfscribe.base import cpu_sets
from perfscribe.distributed import mpi_start
from perfscribe.experiments.polaris.rank_methods.measure import Sizes

if TYPE_CHECKING:
    import torch

    from perfscribe.distributed.rank import Rank

LEARNING_RATE = 1e-3  # the homework's, times the number of ranks
DATA_SEED = 0
BUCKET_MB = 25.0
_PLACES: dict[str, Any] = {}  # cached because the process stays for several methods


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Return places by method, host, device, cores, and the times of a training with the requested method.

    arguments["bound"]: cores of each local rank for train, or empty.
    Raises ValueError if the method's place differs from the launch's: ranks would train on the wrong device.
    """
    import torch

    devices = torch.cuda.device_count() if rank.device.type == "cuda" else rank.place.local_world_size or 1
    if not _PLACES:
        _PLACES.update(mpi_start.places(devices, arguments["asks_mpi"]))
    expected = [rank.place.rank, rank.place.world_size, rank.place.local_rank]
    if _PLACES[arguments["method"]] != expected:
        raise ValueError(f"{arguments['method']} says {_PLACES[arguments['method']]}, the launch {expected}")
    cores = arguments["bound"][rank.place.local_rank] if arguments["bound"] else ()
    return {
        "places": _PLACES,
        "host": platform.node(),
        "device": str(rank.device),
        "devices": devices,
        "variables_left": sum(bool(mpi_start.REMOVED.match(name)) for name in os.environ),
        "cores": list(cpu_sets.granted()),
        **train(Sizes(**arguments["sizes"]), rank, bound=cores),
    }


@contextlib.contextmanager
def bound_to(cores: Iterable[int]) -> Iterator[None]:
    """Context manager that pins every thread of this process to these cores; threads started within inherit them."""
    before = cpu_sets.granted()
    _move_to(cores)
    try:
        yield
    finally:
        _move_to(before)


def _move_to(cores: Iterable[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(int(thread), cores)


def train(
    sizes: Sizes,
    rank: Rank,
    after_step: Callable[[], object] = lambda: None,
    bound: cpu_sets.Cores = (),
) -> dict[str, Any]:
    """Run warm-up steps, then epochs, each timed by the host clock between device synchronisations.

    bound: cores; each epoch is followed by one pinned to them, so that drift affects both alike. Its results are
    bound_training_s and the cores granted. All ranks have the same model and samples; each trains on its share, drawn
    anew every epoch, and gradients are averaged in buckets during backward. Cross-entropy treats the target's
    positions as classes, as in the homework: a workload, not a task.
    """
    import torch

    from perfscribe.instruments.timing import synchronise

    torch.manual_seed(DATA_SEED)
    step, count = _stepper(sizes, rank)
    source, target = (
        torch.rand(sizes.samples, length, sizes.features) for length in (sizes.source_length, sizes.target_length)
    )
    pairs = torch.utils.data.TensorDataset(source, target)
    sampler: Any = torch.utils.data.distributed.DistributedSampler(
        pairs, rank.place.world_size, rank.place.rank, seed=DATA_SEED
    )
    loader = torch.utils.data.DataLoader(pairs, sampler=sampler, batch_size=sizes.batch)
    warm = perf_counter()
    for batch in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), sizes.warmup_steps):
        step(batch)
    synchronise(rank.device)
    torch.distributed.barrier()
    warmup_s = perf_counter() - warm
    loss = torch.tensor(float("nan"))

    def epoch_s() -> float:
        nonlocal loss
        began = perf_counter()
        for batch in loader:
            loss = step(batch)
            after_step()
        synchronise(rank.device)
        return perf_counter() - began

    free_s, bound_s = [], []
    granted: cpu_sets.Cores = ()
    for epoch in range(sizes.epochs):
        sampler.set_epoch(epoch)
        free_s.append(epoch_s())
        if bound:
            with bound_to(bound):
                granted = cpu_sets.granted()
                bound_s.append(epoch_s())
    return {
        "epochs_s": free_s,
        "training_s": sum(free_s),
        "bound_training_s": sum(bound_s),
        "bound_cores": list(granted),
        "warmup_s": warmup_s,
        "parameters": count,
        "final_loss": float(loss),
    }


def _stepper(sizes: Sizes, rank: Rank) -> tuple[Any, int]:
    """Return a function that trains on a batch and returns the loss, and the number of parameters."""
    import torch

    from perfscribe.analytic.shapes import Seq2SeqShape
    from perfscribe.distributed.ddp import BucketedDDP
    from perfscribe.models.seq2seq import make_seq2seq

    layers = sizes.layers
    shape = Seq2SeqShape(sizes.features, encoder_layers=layers, decoder_layers=layers, d_ff=sizes.d_ff)
    model = BucketedDDP(make_seq2seq(shape, device=rank.device), BUCKET_MB)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE * rank.place.world_size)
    criterion = torch.nn.CrossEntropyLoss()

    def step(batch: Any) -> torch.Tensor:
        source, target = (part.to(rank.device) for part in batch)
        model.zero_grad()
        loss: torch.Tensor = criterion(model(source, target), target)
        loss.backward()  # type: ignore[no-untyped-call]
        model.finish_gradient_synchronization()
        optimizer.step()
        return loss.detach()

    return step, sum(parameter.numel() for parameter in model.parameters())
