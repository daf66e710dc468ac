"""Trainings that were measured on several numbers of ranks: their steps, and the terms that a model makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfscribe import tables as t
from perfscribe.experiments.ddp import rows as ddp_rows
from perfscribe.experiments.ddp import variants as v
from perfscribe.experiments.scaling_model.links import ModelledLinks
from perfscribe.files import canonical
from perfscribe.findings import counted
from perfscribe.records import Record
from perfscribe.scaling.reach import MOST_RANKS
from perfscribe.scaling.steps import Computing, Terms, fit_computing
from perfscribe.training_prediction import communication, predict
from perfscribe.training_rows import SCALED, nodes_of, step_ms

STRONG, WEAK = "strong", "weak"
FSDP = ("custom_multi_gpu", "multi_gpu", "weak_scaling")
DDP = "ddp"
# What differs between the rows of one training.
APART = (*SCALED, "variants")
OF_DDP = ("size", "seq_len", "batch", "backend", "device", "dtype", "implementation", "bucket_mb")


@dataclass(frozen=True)
class Training:
    """One training over ranks. scaling: what its measured steps are, strong (same batch) or weak (same rows a rank).

    steps_ms: measured medians by ranks. rows: of a step: of all ranks (strong) or of each (weak). terms: of a step
    on so many ranks, scaled so, from the measured counts given; None where collectives or ranks are missing.
    scaled: rows that a step was measured with, by ranks, where it was brought to `rows` of them in proportion.
    """

    name: str
    experiment: str
    exchange: str
    scaling: str
    records: tuple[Record, ...]
    steps_ms: dict[int, float]
    rows: int
    terms: Callable[[int, str, Sequence[int], ModelledLinks], Terms | None]
    computing: Callable[[Sequence[int]], Computing | None] = lambda counts: None
    scaled: Mapping[int, int] = field(default_factory=dict)
    is_quickest: bool = True

    @property
    def backend(self) -> str:
        """Which library communicates."""
        return str(self.records[0].factors["backend"])

    @property
    def counts(self) -> list[int]:
        """The measured numbers of ranks."""
        return sorted(self.steps_ms)


def fsdp(records: Iterable[Record]) -> list[Training]:
    """Trainings divided by FSDP, of one node, with several counts planned."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        if nodes_of(record) == 1:
            same = {name: level for name, level in record.factors.items() if name not in APART}
            groups.setdefault(canonical(same), []).append(record)
    return [_sharded(group) for group in groups.values() if len(group) > 1]


def _sharded(group: Sequence[Record]) -> Training:
    factors = group[0].factors
    by_ranks = {r.factors["world_size"]: r for r in group if r.ok and step_ms(r) is not None}
    base = by_ranks[min(by_ranks)] if by_ranks else group[0]
    rows = _rows(base)

    def terms(ranks: int, scaling: str, counts: Sequence[int], links: ModelledLinks) -> Terms | None:
        first = by_ranks[min(counts)]
        wanted = {**first.factors, "world_size": ranks, "wrap": "FSDP2" if ranks > 1 else first.factors["wrap"]}
        if scaling == STRONG:  # fewer ranks accumulate more batches
            wanted["grad_acc"] = first.factors["grad_acc"] * MOST_RANKS / ranks
        guess = predict(first.factors, step_ms(first) or 0.0, wanted, links)
        latency = communication(wanted, links.alike(latency_only=True))
        return None if guess is None or latency is None else Terms(guess.compute_ms, guess.communication_ms, latency[0])

    parts = [group[0].experiment, factors["model_name"] if group[0].experiment == "multi_gpu" else "", factors["loop"]]
    if "variants" in factors:
        parts.append(counted(factors["num_layers"], "layer"))
    steps = {ranks: (step_ms(record) or 0.0) * rows / _rows(record) for ranks, record in by_ranks.items()}
    name = _name([*parts, factors["dtype"], factors["device"]])
    scaled = {ranks: _rows(record) for ranks, record in by_ranks.items() if _rows(record) != rows}
    return Training(name, group[0].experiment, "FSDP", WEAK, tuple(group), steps, rows, terms, scaled=scaled)


def _name(parts: Iterable[Any]) -> str:
    return ", ".join(str(part) for part in parts if part)


def _rows(record: Record) -> int:
    """Of one rank in an optimizer step."""
    return int(record.values.get("batch_found", record.factors["batch_size"] * record.factors["grad_acc"]))


def ddp(records: Iterable[Record]) -> list[Training]:
    """Each implementation of data parallelism with several counts planned; the quickest of a setting is marked.

    Without PyTorch's own, whose all-reduces are not counted.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    counted = [name for name in v.IMPLEMENTATIONS if name != v.TORCH]
    for row in ddp_rows.of_implementations(ddp_rows.by_variant(records), *counted):
        groups.setdefault(tuple(row.factors[name] for name in OF_DDP), []).append(row)
    found = [_replicated(group) for group in groups.values() if len(group) > 1]
    return [_marked(one, found) for one in found]


def _replicated(group: Sequence[Record]) -> Training:
    factors = group[0].factors
    by_ranks = {row.factors["world_size"]: row for row in group if row.ok}
    off_ms = {ranks: t.summary(row, "off_ms").median for ranks, row in by_ranks.items()}
    batch = int(factors["batch"])

    def computing(counts: Sequence[int]) -> Computing | None:
        known = {ranks: off_ms[ranks] for ranks in counts}
        return fit_computing(known) if known else None

    def terms(ranks: int, scaling: str, counts: Sequence[int], links: ModelledLinks) -> Terms | None:
        of, row = computing(counts), by_ranks[min(counts)]
        if of is None or (scaling == STRONG and ranks > batch):
            return None
        compute_ms = of.time_ms(ranks if scaling == STRONG else min(counts))
        if ranks == 1:
            return Terms(compute_ms, 0.0)
        ring = links.ring("all_reduce", str(factors["backend"]), ranks)
        if ring is None:
            return None
        calls, sent = int(row.values["all_reduces"]), float(row.values["gradient_bytes"])
        latency_ms = calls * ring.latency_ms
        return Terms(compute_ms, latency_ms + ring.ms_per_byte * sent, latency_ms)

    how = factors["implementation"]
    if how == v.BUCKETED:
        how = f"{how} {factors['bucket_mb']:g} MB"
    name = _name([DDP, factors["size"], f"{batch} x {factors['seq_len']}", how, factors["dtype"], factors["device"]])
    steps = {ranks: t.summary(row, "step_ms").median for ranks, row in by_ranks.items()}
    return Training(name, DDP, "all-reduce", STRONG, tuple(group), steps, batch, terms, computing)


def _marked(one: Training, every: Sequence[Training]) -> Training:
    """Whether it is the quickest at the largest count of its model and dtype."""
    setting = [name for name in OF_DDP if name not in ("implementation", "bucket_mb")]
    own = one.records[0].factors
    same = [two for two in every if all(two.records[0].factors[name] == own[name] for name in setting)]
    most = max((max(two.counts) for two in same if two.counts), default=0)
    quickest = min((two for two in same if most in two.steps_ms), key=lambda two: two.steps_ms[most], default=same[0])
    return replace(one, is_quickest=one is quickest)
