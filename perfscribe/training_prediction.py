"""Optimizer steps of FSDP predicted from one measured training and from what collectives cost: for rows that no GPU
was there for, and beside those that were measured.

Computing is taken from a measured training, in proportion to the FLOP of a rank; each unit of
FSDP costs its all-gathers and its reduce-scatter, latency + bytes / bandwidth by the experiment all_reduce. For more
ranks than that measured, a ring: latency grows with n - 1, bytes with (n - 1)/n. Between nodes: by a network
measured between two, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from perfscribe.counters.weak_scaling import step_flop
from perfscribe.experiments.all_reduce import fits
from perfscribe.models.workshop_shapes import BLOOM, BloomShape, SimpleGptShape
from perfscribe.node_network import ALL_REDUCE, EXPERIMENT, Network
from perfscribe.records import Record

GATHER, REDUCE = "all_gather", "reduce_scatter"
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
STATE_BYTES = 16  # of a parameter: fp32 weight and gradient, AdamW's two moments
DEFAULT = "default"


def shape_of(factors: Mapping[str, Any]) -> SimpleGptShape | BloomShape:
    """The model of a cell."""
    if factors["model_name"] in BLOOM:
        return BLOOM[factors["model_name"]]
    names = ("vocab_size", "hidden_size", "num_layers", "num_heads", "ffn")
    return SimpleGptShape(**{name: factors[name] for name in names})


def flop_per_rank(factors: Mapping[str, Any]) -> int:
    """Of one rank in a full optimizer step."""
    tokens = factors["batch_size"] * factors["grad_acc"] * factors["max_length"]
    return step_flop(shape_of(factors), tokens, factors["max_length"])


@dataclass(frozen=True)
class Ring:
    """Latency and time a byte of one collective among `ranks`, measured or carried over from fewer."""

    latency_ms: float
    ms_per_byte: float
    ranks: int

    def among(self, ranks: int) -> Ring:
        """The same links among another number of ranks."""
        steps, share = (ranks - 1) / (self.ranks - 1), ((ranks - 1) / ranks) / ((self.ranks - 1) / self.ranks)
        return Ring(self.latency_ms * steps, self.ms_per_byte * share, ranks)

    def time_ms(self, whole_bytes: float) -> float:
        """Of one call with so many bytes in the whole array."""
        return self.latency_ms + self.ms_per_byte * whole_bytes


class Links:
    """What collectives cost, as all_reduce measured it; between nodes, as communication_nodes did."""

    def __init__(self, records: Iterable[Record], network: Network | None = None) -> None:
        self._lines = fits.lines(records)
        self._network = network or Network({})

    @classmethod
    def of(cls, records: Mapping[str, list[Record]]) -> Links:
        """From the records of the experiments that measured links, as far as they are there."""
        return cls(records.get(ALL_REDUCE, []), Network.of(records.get(EXPERIMENT, [])))

    def between_nodes(self, operation: str, backend: str, ranks: int) -> Ring | None:
        """Of ranks on several nodes: a ring passes each node's link once, whose bandwidth was measured; latency as
        within a node. None where no network was: the loopback interface is none."""
        own, rate = self.ring(operation, backend, ranks), self._network.bus_gb_per_s.get(backend)
        if own is None or rate is None:
            return None
        return Ring(own.latency_ms, max(own.ms_per_byte, (ranks - 1) / ranks / rate * 1e-6), ranks)

    def ring(self, operation: str, backend: str, ranks: int, transport: str = DEFAULT) -> Ring | None:
        """By the line of the nearest number of ranks; by that of all-reduce, half of it, where there is no other."""
        for taken, part in ((operation, 1.0), ("all_reduce", 0.5)):  # an all-reduce is both of the others
            found = {
                key[4]: line
                for key, line in self._lines.items()
                if (key[0], key[1], key[3]) == (taken, backend, transport) and key[4] > 1
            }
            if found:
                nearest = min(found, key=lambda measured: (abs(measured - ranks), -measured))
                fit = found[nearest].fit
                own = Ring(part * 1e3 * max(0.0, fit.alpha_s), part * 1e3 * max(0.0, fit.beta_s_per_byte), nearest)
                return own if nearest == ranks else own.among(ranks)
        return None


def units_bytes(factors: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """Of each unit of FSDP: parameters, all-gathers in an optimizer step, reduce-scatters; the root's are last.

    Blocks are freed after forward and gathered again for backward, the root is kept in between; gradients are reduced
    with the last accumulated batch.
    """
    shape, batches = shape_of(factors), factors["grad_acc"]
    outside = shape.parameters - shape.num_layers * shape.block_parameters
    return [(shape.block_parameters, 2 * batches, 1)] * shape.num_layers + [(outside, batches, 1)]


def communication(factors: Mapping[str, Any], links: Links, apart: bool = False) -> tuple[float, float] | None:
    """Milliseconds of all collectives of an optimizer step, one after the other, and the bytes that a rank sends.

    apart: whether ranks are on several nodes.
    """
    ranks = factors["world_size"]
    if factors["wrap"] != "FSDP2" or ranks == 1:
        return 0.0, 0.0
    ring = links.between_nodes if apart else links.ring
    gather, reduce = (ring(operation, factors["backend"], ranks) for operation in (GATHER, REDUCE))
    if gather is None or reduce is None:
        return None
    low = DTYPE_BYTES[factors["dtype"]]
    reduced = 4 if factors["loop"] == "tuned" else low
    spent_ms = sent = 0.0
    for parameters, gathers, reductions in units_bytes(factors):
        spent_ms += gathers * gather.time_ms(low * parameters) + reductions * reduce.time_ms(reduced * parameters)
        sent += (gathers * low + reductions * reduced) * parameters * (ranks - 1) / ranks
    return spent_ms, sent


@dataclass(frozen=True)
class Prediction:
    """Milliseconds of an optimizer step: computing, communicating; sent_bytes: of a rank."""

    compute_ms: float
    communication_ms: float
    sent_bytes: float

    @property
    def apart_ms(self) -> float:
        """Nothing of the communication beside computing: the most that it can take."""
        return self.compute_ms + self.communication_ms

    @property
    def overlapped_ms(self) -> float:
        """Everything beside each other: the least."""
        return max(self.compute_ms, self.communication_ms)


def predict(
    base: Mapping[str, Any],
    base_ms: float,
    factors: Mapping[str, Any],
    links: Links,
    apart: bool = False,
    base_apart: bool = False,
) -> Prediction | None:
    """A step of these factors from one that took base_ms with others; None where no links were measured.

    apart, base_apart: whether these ranks, and those of the base, are on several nodes.
    """
    own, computing = communication(factors, links, apart), compute_ms(base, base_ms, factors, links, base_apart)
    return None if own is None or computing is None else Prediction(computing, *own)


def compute_ms(
    base: Mapping[str, Any], base_ms: float, factors: Mapping[str, Any], links: Links, base_apart: bool = False
) -> float | None:
    """What a step of these factors computes, by one that took base_ms with others."""
    of_base = communication(base, links, base_apart)
    if of_base is None:
        return None
    return max(0.0, base_ms - of_base[0]) * flop_per_rank(factors) / flop_per_rank(base)
