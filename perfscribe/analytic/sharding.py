"""Memory and traffic of data-parallel training with AdamW state divided among ranks; no torch.

Ours assigns each parameter to one rank, which updates and broadcasts it; gradients are all-reduced first.
ZeRO stage 1 (Rajbhandari et al., SC 2020, P_os) instead gives each rank an equal piece of the flattened model:
gradients are reduce-scattered to the pieces' owners, updated pieces are all-gathered.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from perfscribe.analytic.bucket_model import fill_buckets
from perfscribe.analytic.ledger import Items, Ledger
from perfscribe.analytic.memory import (
    STATE,
    Optimizer,
    adamw_temporaries,
    before_pass,
    hold_state,
    step_phase_peaks,
    total_bytes,
)
from perfscribe.analytic.parameters import transformer_tensors
from perfscribe.analytic.partition import PIECE_BYTES, partition
from perfscribe.analytic.replay import GRADIENTS
from perfscribe.analytic.shapes import Shape
from perfscribe.analytic.workload import Workload

COMMUNICATION = "communication buffers"
ELEMENT_BYTES = 4
STATE_BYTES = 8  # per element: AdamW's two moments in fp32
STEP_COUNTER_BYTES = 4  # per parameter tensor, on the CPU
GLOO_CHUNK_BYTES = 32 * 2**20  # the same as distributed.broadcasting.CHUNK_BYTES


def owned(shape: Shape, world_size: int) -> list[list[int]]:
    """Return, for each rank, the elements of the parameter tensors whose state it keeps, in registration order."""
    sizes = transformer_tensors(shape)
    owners = partition(sizes, [0] * world_size)
    return [[size for size, owner in zip(sizes, owners, strict=True) if owner == rank] for rank in range(world_size)]


@dataclass(frozen=True)
class Sharding:
    """One rank of a training step.

    load: this rank's batch. world_size: ranks; 1 if the state is not divided, whatever the number of ranks.
    flat: gradients are averaged through a flat copy. exchange: transport of updated parameters: "nccl" in pieces
    through one flat tensor for all ranks, "gloo" in flat chunks, "" none, or in place after a single update of all.
    """

    load: Workload
    world_size: int
    flat: bool = False
    exchange: str = ""

    @property
    def optimizer(self) -> Optimizer:
        """Implementation that torch.optim.AdamW chooses by default."""
        return "foreach" if self.load.device == "cuda" else "for-loop"


def fullest_rank(sharding: Sharding) -> list[int]:
    """Return the elements of the tensors of the rank that keeps most state."""
    return max(owned(sharding.load.shape, sharding.world_size), key=_state_bytes)


def _state_bytes(tensors: Sequence[int]) -> int:
    return STATE_BYTES * sum(tensors) + STEP_COUNTER_BYTES * len(tensors)


def before_step(sharding: Sharding) -> Items:
    """Return the memory between gradient averaging and optimizer step, from step 2 on; the same after the step."""
    return _ledger(sharding).live


def passes_peak(sharding: Sharding) -> Items:
    """Return the peak of forward, backward and gradient averaging, from the second step on."""
    load = sharding.load
    phases = step_phase_peaks(load, sharding.optimizer)
    state = before_step(sharding)[STATE]
    peaks = [{**phases[phase], STATE: state} for phase in ("forward", "backward")]
    ledger = _ledger(sharding)
    if sharding.flat:
        ledger.new(COMMUNICATION, ELEMENT_BYTES * sum(transformer_tensors(load.shape)))
    return max([*peaks, ledger.live], key=total_bytes)


def step_peak(sharding: Sharding) -> Items:
    """Return the peak of the optimizer step with its exchange, from the second step on.

    NCCL: the flat tensor that all pieces use exists from the first piece's exchange on.
    """
    peaks = []
    flat_bytes = 0
    for piece in _pieces(sharding):
        ledger = _ledger(sharding)
        ledger.new(COMMUNICATION, flat_bytes)
        adamw_temporaries(ledger, piece, sharding.optimizer)
        peaks.append(ledger.peak)
        flat_bytes = _flat_bytes(sharding)
    ledger = _ledger(sharding)
    ledger.new(COMMUNICATION, flat_bytes)
    peaks.append(ledger.peak)
    if sharding.exchange == "gloo":
        ledger = _ledger(sharding)
        ledger.new(COMMUNICATION, gloo_chunks_bytes(sharding.load.shape, sharding.world_size))
        peaks.append(ledger.peak)
    return max(peaks, key=total_bytes)


def _pieces(sharding: Sharding) -> list[list[int]]:
    """Return the tensors by update, a piece at a time.

    NCCL: the largest piece of any rank in each round, because the rank measured is the one that holds most.
    """
    if sharding.exchange != "nccl":
        return [fullest_rank(sharding)]
    rounds = itertools.zip_longest(*map(_parts, owned(sharding.load.shape, sharding.world_size)), fillvalue=[])
    return [max(one_round, key=sum) for one_round in rounds]


def _flat_bytes(sharding: Sharding) -> int:
    """Return the bytes of the flat tensor: for each rank the size of the largest piece of any."""
    if sharding.exchange != "nccl" or sharding.world_size == 1:
        return 0
    return sharding.world_size * ELEMENT_BYTES * max(sum(part) for part in _pieces(sharding))


def _parts(elements: Sequence[int]) -> list[list[int]]:
    """Return a rank's tensors in the pieces that it updates and sends at once."""
    return [
        [elements[i] for i in part] for part in fill_buckets([ELEMENT_BYTES * size for size in elements], PIECE_BYTES)
    ]


def gloo_chunks_bytes(shape: Shape, world_size: int) -> int:
    """Return the most bytes of flat copies held at once: a chunk of each rank; a chunk of one tensor needs no copy."""
    by_rank = []
    for mine in owned(shape, world_size):
        sizes = [ELEMENT_BYTES * size for size in mine]
        chunks = [[sizes[i] for i in chunk] for chunk in fill_buckets(sizes, GLOO_CHUNK_BYTES)]
        by_rank.append([sum(chunk) if len(chunk) > 1 else 0 for chunk in chunks])
    return max(sum(one_round) for one_round in itertools.zip_longest(*by_rank, fillvalue=0))


def _ledger(sharding: Sharding) -> Ledger:
    """Return a ledger with everything alive before the optimizer step."""
    load = sharding.load
    ledger = before_pass(load)
    for size in transformer_tensors(load.shape):
        ledger.new(GRADIENTS, ELEMENT_BYTES * size)
    hold_state(ledger, fullest_rank(sharding), load.device)
    ledger.forget_peak()
    return ledger


@dataclass(frozen=True)
class Scheme:
    """Cost per rank and step of a way to divide the work.

    state_bytes: AdamW's moments on the fullest rank.
    gradient_bytes, parameter_bytes: average bytes that a rank sends (and receives) in ring collectives.
    gradient_messages, parameter_messages: number of collectives.
    """

    name: str
    state_bytes: int
    gradient_bytes: float
    parameter_bytes: float
    gradient_messages: int
    parameter_messages: int
    collectives: str


DATA_PARALLEL, OURS, ZERO_1 = "data parallel, nothing sharded", "ours: whole parameters", "ZeRO stage 1"


def schemes(shape: Shape, world_size: int, flat: bool, backend: str) -> list[Scheme]:
    """Return the costs of plain data parallelism, our sharding and ZeRO stage 1, in fp32.

    flat: gradients are averaged as one tensor, else one message per tensor; stage 1 always scatters one flat tensor.
    backend: nccl all-gathers a piece of all ranks in one message of our exchange, others broadcast chunks of each rank.

    A ring sends (n - 1)/n of the bytes from each rank for a reduce-scatter, an all-gather, or broadcasts whose sources
    hold equal shares, and twice that for an all-reduce.
    """
    sizes = transformer_tensors(shape)
    elements, tensors = sum(sizes), len(sizes)
    round_bytes = ELEMENT_BYTES * elements * (world_size - 1) / world_size
    parts = owned(shape, world_size)
    largest = max(map(sum, parts))
    piece = -(-elements // world_size)
    averaged = 1 if flat else tensors
    capacity = PIECE_BYTES if backend == "nccl" else GLOO_CHUNK_BYTES
    calls = [len(fill_buckets([ELEMENT_BYTES * size for size in mine], capacity)) for mine in parts]
    exchange, sent = ("all-gather", max(calls)) if backend == "nccl" else ("broadcast", sum(calls))
    return [
        Scheme(DATA_PARALLEL, STATE_BYTES * elements, 2 * round_bytes, 0.0, averaged, 0, "all-reduce"),
        Scheme(OURS, STATE_BYTES * largest, 2 * round_bytes, round_bytes, averaged, sent, f"all-reduce, {exchange}"),
        Scheme(ZERO_1, STATE_BYTES * piece, round_bytes, round_bytes, 1, 1, "reduce-scatter, all-gather"),
    ]
