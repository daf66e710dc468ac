"""On a rank: what every method says of its place, and the Polaris homework's data-parallel training."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from perfscribe.distributed import binding, mpi_start

if TYPE_CHECKING:
    import torch

    from perfscribe.distributed.rank import Rank

LEARNING_RATE = 1e-3  # the homework's, times the number of ranks
DATA_SEED = 0
BUCKET_MB = 25.0
_PLACES: dict[str, Any] = {}  # of this process, which stays for several methods


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Places by method, host, device, cores, and the times of the training that the asked method was used for.

    Then the same training bound, where arguments["bound"] has the cores of each local rank: bound_training_s, on those
    of bound_cores.

    ValueError: the method does not say what this rank is, so that ranks would train on the wrong device.
    """
    import torch

    devices = torch.cuda.device_count() if rank.device.type == "cuda" else rank.place.local_world_size or 1
    if not _PLACES:
        _PLACES.update(mpi_start.places(devices, arguments["asks_mpi"]))
    expected = [rank.place.rank, rank.place.world_size, rank.place.local_rank]
    if _PLACES[arguments["method"]] != expected:
        raise ValueError(f"{arguments['method']} says {_PLACES[arguments['method']]}, the launch {expected}")
    trained = train(arguments["sizes"], rank)
    if arguments["bound"]:
        cores = arguments["bound"][rank.place.local_rank]
        with bound_to(cores):
            trained |= {"bound_cores": list(binding.granted())}
            trained |= {"bound_training_s": train(arguments["sizes"], rank)["training_s"]}
    return {
        "places": _PLACES,
        "host": platform.node(),
        "device": str(rank.device),
        "devices": devices,
        "variables_left": sum(bool(mpi_start.REMOVED.match(name)) for name in os.environ),
        "cores": list(binding.granted()),
        **trained,
    }


@contextlib.contextmanager
def bound_to(cores: Iterable[int]) -> Iterator[None]:
    """Context with every thread of this process on these cores; those that it begins within stay there."""
    before = binding.granted()
    _move_to(cores)
    try:
        yield
    finally:
        _move_to(before)


def _move_to(cores: Iterable[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.sched_setaffinity(int(thread), cores)


def train(sizes: Mapping[str, int], rank: Rank, after_step: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Warm-up steps, then epochs, each timed by the host clock between waits for the device.

    sizes: of model, data and loop, as the homework names them (measure.SIZES); batch: samples of a rank in a step.
    The same model and samples on every rank; each trains on its share of the samples, anew in every epoch, and
    gradients are averaged in buckets during backward. Cross-entropy takes the positions of the target for classes, as
    the homework does: a load, not a task.
    """
    import torch

    from perfscribe.instruments.timing import synchronise

    torch.manual_seed(DATA_SEED)
    step, count = _stepper(sizes, rank)
    source, target = (
        torch.rand(sizes["samples"], sizes[f"{name}_length"], sizes["features"]) for name in ("source", "target")
    )
    pairs = torch.utils.data.TensorDataset(source, target)
    sampler: Any = torch.utils.data.distributed.DistributedSampler(
        pairs, rank.place.world_size, rank.place.rank, seed=DATA_SEED
    )
    loader = torch.utils.data.DataLoader(pairs, sampler=sampler, batch_size=sizes["batch"])
    warm = perf_counter()
    for batch in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), sizes["warmup_steps"]):
        step(batch)
    synchronise(rank.device)
    torch.distributed.barrier()
    epochs_s, start = [], perf_counter()
    warmup_s = start - warm
    loss = torch.tensor(float("nan"))
    for epoch in range(sizes["epochs"]):
        sampler.set_epoch(epoch)
        began = perf_counter()
        for batch in loader:
            loss = step(batch)
            after_step()
        synchronise(rank.device)
        epochs_s.append(perf_counter() - began)
    total_s = perf_counter() - start
    return {
        "epochs_s": epochs_s,
        "training_s": total_s,
        "warmup_s": warmup_s,
        "parameters": count,
        "final_loss": float(loss),
    }


def _stepper(sizes: Mapping[str, int], rank: Rank) -> tuple[Any, int]:
    """A function that trains on a batch and gives the loss; the number of parameters."""
    import torch

    from perfscribe.analytic.shapes import Seq2SeqShape
    from perfscribe.distributed.ddp import BucketedDDP
    from perfscribe.models.seq2seq import make_seq2seq

    layers = sizes["layers"]
    shape = Seq2SeqShape(sizes["features"], encoder_layers=layers, decoder_layers=layers, d_ff=sizes["d_ff"])
    model = BucketedDDP(make_seq2seq(shape, device=rank.device), BUCKET_MB)
    model.train()
    optimizer = Adam(list(model.parameters()), LEARNING_RATE * rank.place.world_size)
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


class Adam:
    """Adam with its usual settings, by PyTorch's own fused kernel.

    torch.optim imports the compiler with the first optimizer: in fresh processes as much time as torch itself takes,
    which four ranks of each launch would pay.
    """

    def __init__(self, parameters: list[torch.Tensor], learning_rate: float) -> None:
        import torch

        self._parameters, self._learning_rate = parameters, learning_rate
        self._means = [torch.zeros_like(parameter) for parameter in parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in parameters]
        self._steps = [torch.zeros((), device=parameter.device) for parameter in parameters]

    def step(self) -> None:
        """Update the parameters, all of which have gradients."""
        import torch

        with torch.no_grad():
            torch._foreach_add_(self._steps, 1)
            gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
            torch._fused_adam_(  # type: ignore[attr-defined]
                self._parameters,
                gradients,
                self._means,
                self._squares,
                [],
                self._steps,
                lr=self._learning_rate,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.0,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )
