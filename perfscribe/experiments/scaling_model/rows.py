"""Rows of the table: one record a training and number of ranks, measured or by the training's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfscribe.experiments.scaling_model import formulas as of
from perfscribe.experiments.scaling_model import trainings as tr
from perfscribe.instruments.statistics import format_figure
from perfscribe.records.records import Record

HOLDS = 0.10  # largest residual, and error of the largest count left out, with which a model is taken to hold
EXACT = 1e-6  # a residual below it is none but for rounding
TOO_FEW_STEPS = "too few steps were timed"
NO_LINKS = "no collective among several processes was measured with this backend"
NOT_MEASURED, THE_BASE = "not measured", "0: computing is taken from it"
NO_FRACTION = "none: not between 0 and 1"
MISSED = "none: terms miss the measured steps"
TIMES = ("step_ms", "model_ms", "band", "samples_per_s", "compute_ms", "exposed_ms", "limit")
# What a row that was not measured says by its model alone: nothing, where that misses what was measured.
OF_THE_MODEL = (*TIMES, "weak_percent", "strong_percent")
HELD = {None: "cannot tell", True: "yes", False: "no"}


@dataclass(frozen=True)
class Model:
    """counts: the measured ones that it is fitted to. fit: None where no step communicates: then nothing overlaps."""

    training: tr.Training
    links: tr.ModelledLinks
    counts: tuple[int, ...]
    fit: of.OverlapFit | None

    @property
    def overlap(self) -> float:
        """The share of what could be hidden that is; 0 where nothing could be fitted."""
        return 0.0 if self.fit is None else self.fit.overlap

    def terms(self, ranks: int, scaling: str = "") -> of.Terms | None:
        """Of a step, scaled as it was measured where nothing else is said; None where ranks outnumber rows."""
        return self.training.terms(ranks, scaling or self.training.scaling, self.counts, self.links)

    def step_ms(self, ranks: int, scaling: str = "") -> float | None:
        """Of a step."""
        terms = self.terms(ranks, scaling)
        return None if terms is None else terms.step_ms(self.overlap)

    def residual(self, ranks: int) -> float | None:
        """Measured over modelled, minus one; None where nothing was measured."""
        modelled, measured = self.step_ms(ranks), self.training.steps_ms.get(ranks)
        return None if modelled is None or measured is None else measured / modelled - 1

    def base_is_missed(self) -> bool:
        """Whether the step that computing is taken from differs from the model's: it communicates, and overlap hides
        a part of that on more ranks."""
        found = None if self.fit is None or self.training.is_replicated else self.residual(min(self.counts))
        return found is not None and abs(found) > EXACT

    def efficiency(self, ranks: int, scaling: str) -> float | None:
        """By the model, against one rank by the model."""
        one, own = self.step_ms(1, scaling), self.step_ms(ranks, scaling)
        return None if one is None or own is None else one / own / (ranks if scaling == tr.STRONG else 1)

    def measured_efficiency(self, ranks: int) -> float | None:
        """Of a measured step against the measured one of fewest ranks."""
        steps, base = self.training.steps_ms, min(self.counts)
        if ranks not in steps:
            return None
        return steps[base] / steps[ranks] * (base / ranks if self.training.scaling == tr.STRONG else 1)

    def textbook_efficiency(self, ranks: int) -> float | None:
        """Amdahl's (strong) or Gustafson's (weak), by the serial fraction of the measured steps of fewest and most
        ranks; None where that is none between 0 and 1."""
        steps, few, many = self.training.steps_ms, min(self.counts), max(self.counts)
        if few == many:
            return None
        strong = self.training.scaling == tr.STRONG
        serial = of.serial_fraction_strong if strong else of.serial_fraction_weak
        fraction = serial(few, steps[few], many, steps[many])
        if fraction is None or not 0 <= fraction <= 1:
            return None
        return (of.amdahl_efficiency if strong else of.gustafson_efficiency)(fraction, ranks)

    def left_out(self) -> float | None:
        """Measured over predicted minus one at the largest count, with every term from smaller counts.

        None where these are too few: none at all, or one that cannot tell which part of computing is divided.
        """
        most = max(self.counts)
        rest = [ranks for ranks in self.counts if ranks < most]
        if len(rest) < (2 if self.training.is_replicated else 1):
            return None
        smaller = model_of(self.training, self.links.alike(below=most), rest)
        if smaller is None or smaller.fit is None:
            return None
        predicted = smaller.step_ms(most)
        return None if predicted is None else self.training.steps_ms[most] / predicted - 1

    def holds(self) -> bool | None:
        """Whether residuals and the largest count left out stay within HOLDS; None where nothing tells.

        A residual beyond is enough to say no; small ones alone are no yes, as overlap was fitted to them.
        """
        if self.fit is None:
            return None
        residuals = list(self.fit.residuals.values())
        if self.base_is_missed():
            residuals.append(self.residual(min(self.counts)) or 0.0)
        if any(abs(one) > HOLDS for one in residuals):
            return False
        left_out = self.left_out()
        return None if left_out is None else abs(left_out) <= HOLDS


def model_of(training: tr.Training, links: tr.ModelledLinks, counts: Sequence[int] = ()) -> Model | None:
    """The model from these measured counts, by default all; None without a measured step or without collectives.

    The step that computing is taken from says nothing of overlap, and is no point of the fit.
    """
    chosen = tuple(counts or training.counts)
    if not chosen or training.terms(2, training.scaling, chosen, links) is None:
        return None
    points = []
    for ranks in chosen if training.is_replicated else [ranks for ranks in chosen if ranks > min(chosen)]:
        terms = training.terms(ranks, training.scaling, chosen, links)
        if terms is not None:
            points.append(of.Point(ranks, training.steps_ms[ranks], terms))
    return Model(training, links, chosen, of.fit_overlap(points))


def predicted(records: Mapping[str, list[Record]], links: tr.ModelledLinks) -> list[Record]:
    """One record a training and number of ranks; of data parallelism the quickest implementation alone."""
    found = []
    sharded = [training for name in tr.FSDP for training in tr.fsdp(records.get(name, []))]
    for training in (*sharded, *tr.ddp(records.get(tr.DDP, []))):
        model = model_of(training, links)
        if model is None:
            found.append(_without(training))
        else:
            found += [_count_row(model, ranks) for ranks in of.counts(model.counts)]
    return found


def _row(training: tr.Training, factors: Mapping[str, Any], values: Mapping[str, Any], origin: str) -> Record:
    """A record of the training's measured cells with these factors and values."""
    good = [record for record in training.records if record.ok]
    named = {"training": training.name, "exchange": training.exchange, "scaling": training.scaling, **factors}
    return replace(
        (good or training.records)[0],
        factors=named,
        values=dict(values),
        origin=origin,
        environments=sorted({name for record in good for name in record.environments}),
        flags=sorted({flag for record in good for flag in record.flags}),
        samples={},
        warmup={},
        series={},
        timers={},
    )


def _without(training: tr.Training) -> Record:
    """A row of a training without a model, with what keeps it from one."""
    row = _row(training, {"ranks": "all", "origin": NOT_MEASURED, "reach": NOT_MEASURED}, {}, of.MEASURED)
    ended = next((record for record in training.records if not record.ok), training.records[0])
    status, reason = (ended.status, ended.reason) if not training.counts else ("not_run", NO_LINKS)
    if status == "ok":
        status, reason = "not_run", TOO_FEW_STEPS
    return replace(row, status=status, reason=reason, environments=ended.environments)


def _count_row(model: Model, ranks: int) -> Record:
    training, reached, holds = model.training, of.reach(ranks, model.counts), model.holds()
    measured = ranks in training.steps_ms
    origin = of.MEASURED if measured else of.PREDICTED
    values = _times(model, ranks)
    for scaling in (tr.WEAK, tr.STRONG):
        values[f"{scaling}_percent"] = _percent(model.efficiency(ranks, scaling), f"none: {training.rows} rows")
    values["measured_percent"] = _percent(model.measured_efficiency(ranks), NOT_MEASURED)
    values["textbook_percent"] = _percent(model.textbook_efficiency(ranks), NO_FRACTION)
    if holds is False and not measured:
        values |= dict.fromkeys(OF_THE_MODEL, MISSED)
    values |= {"holds": HELD[holds], "links": model.links.named(training.backend, ranks)}
    row = _row(training, {"ranks": ranks, "origin": origin, "reach": reached}, values, origin)
    if ranks in training.scaled:
        row.flags.append(f"step of {training.scaled[ranks]} rows a rank, scaled to {training.rows}")
    return row


def _percent(share: float | None, without: str) -> float | str:
    return without if share is None else 100 * share


def _times(model: Model, ranks: int) -> dict[str, Any]:
    """Times of a row; a text in each place where ranks outnumber rows."""
    training, terms = model.training, model.terms(ranks)
    if terms is None:
        return dict.fromkeys((*TIMES, "residual_percent"), f"none: {training.rows} rows")
    modelled = terms.step_ms(model.overlap)
    step_ms = training.steps_ms.get(ranks, modelled)
    rows = training.rows * (ranks if training.scaling == tr.WEAK else 1)
    residual: Any = NOT_MEASURED
    if (found := model.residual(ranks)) is not None:
        fitted = model.fit is not None and ranks in model.fit.residuals
        residual = 100 * found if fitted or model.base_is_missed() else THE_BASE
    band = None if model.fit is None else model.fit.band_ms(terms)
    without = f"none: {0 if model.fit is None else model.fit.points} of {of.BAND_FROM} points"
    return {
        "step_ms": step_ms,
        "model_ms": modelled,
        "residual_percent": residual,
        "band": without if band is None else f"{format_figure(band[0])} to {format_figure(band[1])}",
        "samples_per_s": rows / step_ms * 1e3,
        "compute_ms": terms.compute_ms,
        "exposed_ms": terms.exposed_ms(model.overlap),
        "limit": _limit(terms, model.overlap),
    }


def _limit(terms: of.Terms, overlap: float) -> str:
    """What takes most of a step: computing, or of what is exposed the larger part, latency or bandwidth."""
    if terms.exposed_ms(overlap) <= terms.compute_ms:
        return "computing"
    return "latency" if 2 * terms.latency_ms > terms.communication_ms else "bandwidth"
