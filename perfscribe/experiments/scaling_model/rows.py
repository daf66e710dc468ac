"""Rows of the tables: a record a training, one a training and number of ranks, one a collective, one a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfscribe.experiments.scaling_model import trainings as tr
from perfscribe.experiments.scaling_model.links import ModelledLinks
from perfscribe.experiments.scaling_model.model import Model, model_of
from perfscribe.records import Record
from perfscribe.scaling import reach as of
from perfscribe.scaling.steps import Computing, Terms, band_reason
from perfscribe.statistics import format_figure

TOO_FEW_STEPS = "too few steps were timed"
NO_LINKS = "no collective among several processes was measured with this backend"
NOT_MEASURED, THE_BASE = "not measured", "0: computing is taken from it"
NO_FIT = "none: no step that communicates"
NO_REST = "none: too few are left"
NO_FRACTION = "none: not between 0 and 1"
SLOWER, ABOVE_LINEAR = "none: more ranks were slower", "none: more than linear"
MISSED = "none: terms miss the measured steps"
ALL = "all"
# What a row that was not measured says by its model alone: nothing, where that misses what was measured.
TIMES = ("step_ms", "model_ms", "band", "samples_per_s", "compute_ms", "exposed_ms", "limit")
OF_THE_MODEL = (*TIMES, *(f"{scaling}_percent" for scaling in (tr.WEAK, tr.STRONG)))
HELD = {None: "cannot tell", True: "yes", False: "no"}


def models(records: Mapping[str, list[Record]], links: ModelledLinks) -> list[tuple[tr.Training, Model | None]]:
    """Every training with several counts planned, and its model where it has one."""
    sharded = [training for name in tr.FSDP for training in tr.fsdp(records.get(name, []))]
    return [(one, model_of(one, links)) for one in (*sharded, *tr.ddp(records.get(tr.DDP, [])))]


def _row(training: tr.Training, factors: Mapping[str, Any], values: Mapping[str, Any], origin: str) -> Record:
    """A record of the training's measured cells with these factors and values."""
    good = [record for record in training.records if record.ok]
    environments = sorted({name for record in good for name in record.environments})
    flags = sorted({flag for record in good for flag in record.flags})
    first = good[0] if good else training.records[0]
    named = {"training": training.name, "exchange": training.exchange, "scaling": training.scaling, **factors}
    cleared: dict[str, Any] = {"samples": {}, "warmup": {}, "series": {}, "timers": {}}
    return replace(
        first, factors=named, values=dict(values), origin=origin, environments=environments, flags=flags, **cleared
    )


def _without(training: tr.Training, factors: Mapping[str, Any]) -> Record:
    """A row of a training without a model, with what keeps it from one."""
    row = _row(training, factors, {}, of.MEASURED)
    ended = next((record for record in training.records if not record.ok), training.records[0])
    why = (ended.status, ended.reason) if not training.counts else ("not_run", NO_LINKS)
    if why[0] == "ok":
        why = ("not_run", TOO_FEW_STEPS)
    return replace(row, status=why[0], reason=why[1], environments=ended.environments)


def terms(found: Iterable[tuple[tr.Training, Model | None]]) -> list[Record]:
    """One record a training: what was fitted, and how well."""
    return [_without(one, {}) if model is None else _terms_row(one, model) for one, model in found]


def _terms_row(training: tr.Training, model: Model) -> Record:
    most = max(model.counts)
    own, computing = model.terms(most, training.scaling), training.computing(model.counts)
    values: dict[str, Any] = {"counts": ", ".join(map(str, model.counts))}
    values |= _own_terms(own, computing) | _overlap(model)
    left_out = model.left_out()
    values["left_out_percent"] = NO_REST if left_out is None else 100 * left_out
    values["serial_percent"] = _serial(model)
    values["holds"] = HELD[model.holds()]
    return _row(training, {}, values, of.PREDICTED)


def _serial(model: Model) -> float | str:
    """The serial fraction in percent; what lies beyond 0 and 1 is none, and says what the steps were instead."""
    fraction = model.serial_fraction()
    if fraction is None:
        return "none: one count" if len(model.counts) == 1 else NO_FRACTION
    if not 0 <= fraction <= 1:
        return SLOWER if fraction > 1 else ABOVE_LINEAR
    return 100 * fraction


def _own_terms(own: Terms | None, computing: Computing | None) -> dict[str, Any]:
    if own is None:
        return dict.fromkeys(("compute_ms", "communication_ms", "latency_ms", "fixed_ms"), "more ranks than rows")
    fixed: Any = "not told apart"
    if computing is not None and computing.points > 1:
        fixed = computing.fixed_ms
    return {
        "compute_ms": own.compute_ms,
        "fixed_ms": fixed,
        "communication_ms": own.communication_ms,
        "latency_ms": own.latency_ms,
    }


def _overlap(model: Model) -> dict[str, Any]:
    fit, worst = model.fit, model.worst()
    if fit is None or worst is None:
        return dict.fromkeys(("overlap_percent", "asked_percent", "worst_percent"), NO_FIT) | {"points": 0}
    return {
        "overlap_percent": 100 * fit.overlap,
        "asked_percent": 100 * fit.asked,
        "worst_percent": 100 * worst,
        "points": fit.points,
    }


def predicted(found: Iterable[tuple[tr.Training, Model | None]]) -> list[Record]:
    """One record a training and number of ranks; of data parallelism the quickest implementation alone."""
    rows = []
    for training, model in found:
        if not training.is_quickest:
            continue
        if model is None:
            rows.append(_without(training, {"ranks": ALL, "origin": NOT_MEASURED, "reach": NOT_MEASURED}))
            continue
        rows += [_count_row(model, ranks) for ranks in of.counts(model.counts)]
    return rows


def _count_row(model: Model, ranks: int) -> Record:
    training, reached = model.training, of.reach(ranks, model.counts)
    measured = ranks in training.steps_ms
    origin = of.MEASURED if measured else of.PREDICTED
    terms_of, modelled = model.terms(ranks, training.scaling), model.step_ms(ranks)
    values = _steps(model, ranks, terms_of, modelled)
    for scaling in (tr.WEAK, tr.STRONG):
        own = model.efficiency(ranks, scaling)
        values[f"{scaling}_percent"] = _fewer(training) if own is None else 100 * own
    own = model.measured_efficiency(ranks)
    values["measured_percent"] = NOT_MEASURED if own is None else 100 * own
    own = model.textbook_efficiency(ranks)
    values["textbook_percent"] = NO_FRACTION if own is None else 100 * own
    holds = model.holds()
    if holds is False and not measured:
        values |= dict.fromkeys(OF_THE_MODEL, MISSED)
    values["holds"] = HELD[holds]
    values["links"] = model.links.named(training.backend, ranks)
    row = _row(training, {"ranks": ranks, "origin": origin, "reach": reached}, values, origin)
    if ranks in training.scaled:
        row.flags.append(f"step of {training.scaled[ranks]} rows a rank, scaled to {training.rows}")
    return row


def _fewer(training: tr.Training) -> str:
    return f"none: {training.rows} rows"


def _steps(model: Model, ranks: int, terms_of: Terms | None, modelled: float | None) -> dict[str, Any]:
    """Times of a row; a text in each place where ranks outnumber rows."""
    training = model.training
    names = ("step_ms", "model_ms", "residual_percent", "band", "samples_per_s", "compute_ms", "exposed_ms", "limit")
    if terms_of is None or modelled is None:
        return dict.fromkeys(names, _fewer(training))
    step_ms = training.steps_ms.get(ranks, modelled)
    rows = training.rows * (ranks if training.scaling == tr.WEAK else 1)
    residual: Any = NOT_MEASURED
    if (found := model.residual(ranks)) is not None:
        fitted = model.fit is not None and ranks in model.fit.residuals
        residual = 100 * found if fitted or model.base_is_missed() else THE_BASE
    band = None if model.fit is None else model.fit.band_ms(terms_of)
    shown = band_reason(model.fit) if band is None else f"{format_figure(band[0])} to {format_figure(band[1])}"
    times = (step_ms, modelled, residual, shown, rows / step_ms * 1e3)
    exposed_ms = terms_of.exposed_ms(model.overlap)
    return dict(zip(names, (*times, terms_of.compute_ms, exposed_ms, model.limit(ranks)), strict=True))


def backends(records: Sequence[Record]) -> list[str]:
    """Those of all_reduce's cells, nccl first."""
    return sorted({str(record.factors["backend"]) for record in records}, reverse=True)
