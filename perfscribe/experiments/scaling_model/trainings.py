"""Trainings that were measured on several numbers of ranks: their steps, and the terms that a model makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfscribe.base.files import canonical
from perfscribe.experiments.ddp import variants as v
from perfscribe.experiments.node_network import ALL_REDUCE, Network
from perfscribe.experiments.scaling_model import formulas as of
from perfscribe.experiments.training_rows import SCALED, flop_per_rank, nodes_of, step_ms
from perfscribe.records.records import Record
from perfscribe.show import tables as t
from perfscribe.training.launching import shape_of

GATHER, REDUCE, DEFAULT = "all_gather", "reduce_scatter", "default"
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
STRONG, WEAK = "strong", "weak"
FSDP = ("custom_multi_gpu", "multi_gpu", "weak_scaling")
DDP = "ddp"
APART = (*SCALED, "variants")  # what differs between the rows of one training
OF_DDP = ("size", "seq_len", "batch", "backend", "device", "dtype")
# Whose links a time is of.
OWN, ASSUMED, NETWORK = "this machine's", "assumed as here", "measured network"


@dataclass(frozen=True)
class Ring:
    """Latency and time a byte of one collective."""

    latency_ms: float
    ms_per_byte: float

    def time_ms(self, whole_bytes: float) -> float:
        """Of one call with so many bytes in the whole array."""
        return self.latency_ms + self.ms_per_byte * whole_bytes


class Links:
    """What a collective costs among any number of ranks, by all that all_reduce measured of it."""

    def __init__(self, records: Iterable[Record], network: Network | None = None) -> None:
        self._records, self._network = list(records), network or Network({})
        self._fits: dict[tuple[str, str], of.CollectiveFit | None] = {}
        self._below: dict[int, Links] = {}

    def below(self, ranks: int) -> Links:
        """By what was measured among fewer ranks alone."""
        if ranks not in self._below:
            fewer = [record for record in self._records if record.factors["world_size"] < ranks]
            self._below[ranks] = Links(fewer, self._network)
        return self._below[ranks]

    def ring(self, operation: str, backend: str, ranks: int) -> Ring | None:
        """Latency and time a byte of one collective; half an all-reduce's where there is no other."""
        for taken, part in ((operation, 1.0), (ALL_REDUCE, 0.5)):
            fit = self._fit(taken, backend)
            if fit is not None:
                per_byte = part * self._ms_per_message_byte(fit, backend, ranks)
                return Ring(part * fit.latency_ms(ranks), per_byte)
        return None

    def named(self, backend: str, ranks: int) -> str:
        """Which links a row's time is of."""
        if ranks <= self._most_ranks(backend):
            return OWN
        return NETWORK if backend in self._network.bus_gb_per_s else ASSUMED

    def _fit(self, operation: str, backend: str) -> of.CollectiveFit | None:
        """The collective's model, over the links that the backend chose; None where too few calls were measured."""
        key = operation, backend
        if key not in self._fits:
            wanted = {"operation": operation, "backend": backend, "transport": DEFAULT}
            own = [record for record in self._records if record.ok and record.has(**wanted)]
            logged = dict.fromkeys(str(r.values["algorithm"]) for r in own if "algorithm" in r.values)
            timed = [(r.factors["world_size"], r.values["message_bytes"], t.summary(r, "time_ms").median) for r in own]
            self._fits[key] = of.best_fit(operation, [of.Call(*one) for one in timed], ", ".join(logged))
        return self._fits[key]

    def _most_ranks(self, backend: str) -> int:
        """The largest count among which collectives were measured: further ranks may be on other nodes."""
        counts = [n for name in of.PHASES if (fit := self._fit(name, backend)) is not None for n in fit.counts]
        return max(counts, default=1)

    def _ms_per_message_byte(self, fit: of.CollectiveFit, backend: str, ranks: int) -> float:
        """Time that a byte of the whole array adds; beyond this machine's ranks not less than the network's."""
        own = fit.ms_per_message_byte(ranks)
        network = self._network.bus_gb_per_s.get(backend)
        if network is None or ranks <= self._most_ranks(backend) or fit.ms_per_byte <= 0:
            return own
        return own * max(1.0, (fit.bus_gb_per_s or 0.0) / network)


@dataclass(frozen=True)
class Training:
    """One training over ranks. scaling: what its measured steps are, strong (same batch) or weak (same rows a rank).

    steps_ms: measured medians by ranks. rows: of a step: of all ranks (strong) or of each (weak). terms: of a step
    on so many ranks, scaled so, from the measured counts given; None where collectives or ranks are missing.
    scaled: rows that a step was measured with, by ranks, where it was brought to `rows` of them in proportion.
    """

    name: str
    scaling: str
    records: tuple[Record, ...]
    steps_ms: dict[int, float]
    rows: int
    terms: Callable[[int, str, Sequence[int], Links], of.Terms | None]
    scaled: Mapping[int, int] = field(default_factory=dict)

    @property
    def backend(self) -> str:
        """Which library communicates."""
        return str(self.records[0].factors["backend"])

    @property
    def counts(self) -> list[int]:
        """The measured numbers of ranks."""
        return sorted(self.steps_ms)

    @property
    def is_replicated(self) -> bool:
        """Whether each rank holds all: its computing is measured apart on each count, not taken from the least."""
        return self.scaling == STRONG


def fsdp(records: Iterable[Record]) -> list[Training]:
    """Trainings divided by FSDP, of one node, with several counts planned."""
    groups = t.grouped(
        (record for record in records if nodes_of(record) == 1),
        lambda record: canonical({name: level for name, level in record.factors.items() if name not in APART}),
    )
    return [_sharded(group) for group in groups.values() if len(group) > 1]


def _sharded(group: Sequence[Record]) -> Training:
    experiment, factors = group[0].experiment, group[0].factors
    by_ranks = {r.factors["world_size"]: r for r in group if r.ok and step_ms(r) is not None}
    rows = _rows(by_ranks[min(by_ranks)] if by_ranks else group[0])

    def terms(ranks: int, scaling: str, counts: Sequence[int], links: Links) -> of.Terms | None:
        first = by_ranks[min(counts)]
        wanted = {**first.factors, "world_size": ranks, "wrap": "FSDP2" if ranks > 1 else first.factors["wrap"]}
        if scaling == STRONG:  # fewer ranks accumulate more batches
            wanted["grad_acc"] = first.factors["grad_acc"] * of.MOST_RANKS / ranks
        own, of_first = communication_ms(wanted, links), communication_ms(first.factors, links)
        if own is None or of_first is None:
            return None
        computing = max(0.0, (step_ms(first) or 0.0) - of_first)
        return of.Terms(computing * flop_per_rank(wanted) / flop_per_rank(first.factors), own)

    layers = factors["num_layers"] if "variants" in factors else 0
    parts = [
        experiment,
        factors["model_name"] if experiment == "multi_gpu" else "",
        factors["loop"],
        f"{layers} layer{'s' if layers > 1 else ''}" if layers else "",
        factors["dtype"],
        factors["device"],
    ]
    steps = {ranks: (step_ms(record) or 0.0) * rows / _rows(record) for ranks, record in by_ranks.items()}
    scaled = {ranks: _rows(record) for ranks, record in by_ranks.items() if _rows(record) != rows}
    name = ", ".join(str(part) for part in parts if part)
    return Training(name, WEAK, tuple(group), steps, rows, terms, scaled)


def _rows(record: Record) -> int:
    """Of one rank in an optimizer step."""
    return int(record.values.get("batch_found", record.factors["batch_size"] * record.factors["grad_acc"]))


def communication_ms(factors: Mapping[str, Any], links: Links) -> float | None:
    """All collectives of an optimizer step, one after the other; None where no links were measured.

    FSDP2's blocks are freed after forward and gathered again for backward; the root, with FSDP1 all of the model, is
    kept in between. Gradients are reduced with the last accumulated batch.
    """
    ranks = factors["world_size"]
    if factors["wrap"] == "none" or ranks == 1:
        return 0.0
    gather, reduce = (links.ring(operation, factors["backend"], ranks) for operation in (GATHER, REDUCE))
    if gather is None or reduce is None:
        return None
    shape, batches, low = shape_of(factors), factors["grad_acc"], DTYPE_BYTES[factors["dtype"]]
    reduced = 4 if factors["loop"] == "tuned" else low
    layers = shape.num_layers if factors["wrap"] == "FSDP2" else 0
    outside = shape.parameters - layers * shape.block_parameters
    spent_ms = 0.0
    for parameters, gathers in [(shape.block_parameters, 2 * batches)] * layers + [(outside, batches)]:
        spent_ms += gathers * gather.time_ms(low * parameters) + reduce.time_ms(reduced * parameters)
    return spent_ms


def ddp(records: Iterable[Record]) -> list[Training]:
    """Of data parallelism with several counts planned the quickest implementation of each setting.

    Without PyTorch's own, whose all-reduces are not counted.
    """
    settings: dict[tuple[Any, ...], dict[v.Variant, list[Record]]] = {}
    for record in records:
        for variant in v.from_level(str(record.factors["variants"])):
            if variant.implementation != v.TORCH:
                setting = tuple(record.factors[name] for name in OF_DDP)
                settings.setdefault(setting, {}).setdefault(variant, []).append(record)
    found = []
    for variants in settings.values():
        trainings = [_replicated(variant, group) for variant, group in variants.items() if len(group) > 1]
        most = max((max(one.counts) for one in trainings if one.counts), default=0)
        timed = [one for one in trainings if most in one.steps_ms]
        found += [min(timed, key=lambda one: one.steps_ms[most])] if timed else trainings[:1]
    return found


def _replicated(variant: v.Variant, group: Sequence[Record]) -> Training:
    factors, key = group[0].factors, variant.key
    by_ranks = {record.factors["world_size"]: record for record in group if record.ok}
    off_ms = {ranks: t.summary(record, f"{key}_off_ms").median for ranks, record in by_ranks.items()}
    batch = int(factors["batch"])

    def terms(ranks: int, scaling: str, counts: Sequence[int], links: Links) -> of.Terms | None:
        if scaling == STRONG and ranks > batch:
            return None
        computing, record = of.fit_computing({count: off_ms[count] for count in counts}), by_ranks[min(counts)]
        compute_ms = computing.time_ms(ranks if scaling == STRONG else min(counts))
        if ranks == 1:
            return of.Terms(compute_ms, 0.0)
        ring = links.ring(ALL_REDUCE, str(factors["backend"]), ranks)
        if ring is None:
            return None
        calls, sent = int(record.values[f"{key}_all_reduces"]), float(record.values["gradient_bytes"])
        return of.Terms(compute_ms, calls * ring.latency_ms + ring.ms_per_byte * sent)

    how = variant.implementation if variant.bucket_mb is None else f"{variant.implementation} {variant.bucket_mb:g} MB"
    name = f"{DDP}, {factors['size']}, {batch} x {factors['seq_len']}, {how}, {factors['dtype']}, {factors['device']}"
    steps = {ranks: t.summary(record, f"{key}_step_ms").median for ranks, record in by_ranks.items()}
    return Training(name, STRONG, tuple(group), steps, batch, terms)
