"""Table and figure of what terms measured apart say of more ranks than there are.

A row is a training and a number of ranks, measured or by the training's model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from perfscribe.experiments.multi_gpu.drawings import numbers, plain_log
from perfscribe.experiments.node_network import ALL_REDUCE, Network
from perfscribe.experiments.scaling_model import formulas as of
from perfscribe.experiments.scaling_model import trainings as tr
from perfscribe.experiments.scaling_model.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t

HOLDS = 0.10  # largest residual, and error of the largest count left out, with which a model is taken to hold
EXACT = 1e-6  # a residual below it is none but for rounding
TOO_FEW_STEPS = "too few steps were timed"
NO_LINKS = "no collective among several processes was measured with this backend"
NOT_MEASURED = "not measured"
MISSED = "none: terms miss the measured steps"
TIMES = ("step_ms", "model_ms", "samples_per_s", "compute_ms", "exposed_ms")
# What a row that was not measured says by its model alone: nothing, where that misses what was measured.
OF_THE_MODEL = (*TIMES, "weak_percent", "strong_percent")
HELD = {None: "cannot tell", True: "yes", False: "no"}
NOTES = (
    "Step: computing + communicating - overlap x the shorter of both, overlap fitted to the measured steps "
    "(docs/scaling.md); where that misses them, rows that were not measured have no figure.",
    "Links assumed as here are the least that more ranks can cost: times are lower bounds, efficiencies upper ones.",
)
CAPTION = (
    "A training step, and its weak and strong efficiency against one rank by the model. Filled: measured; hollow: the "
    "model's; grey: beyond the reach of any measured count."
)
COLUMNS = [
    *t.factors(training="Training", scaling="Measured scaling", ranks="Ranks", origin="Origin", reach="Reach"),
    *t.values(step_ms="Step (ms)", model_ms="By the model (ms)", residual_percent="Residual (%)"),
    *t.values(samples_per_s="Samples/s", compute_ms="Computing (ms)", exposed_ms="Exposed communication (ms)"),
    *t.values(weak_percent="Weak efficiency (%)", strong_percent="Strong efficiency (%)"),
    *t.values(measured_percent="Measured efficiency (%)"),
    *t.exact(links="Links", holds="Model holds"),
]


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """A row a training and number of ranks."""
    links = tr.Links(records[ALL_REDUCE], Network.of(records.get("communication_nodes", [])))
    return [t.make(SHOWN.tables[0], "Training on more ranks", predicted(records, links), COLUMNS, NOTES)]


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Steps and efficiencies over ranks."""
    shown = tables[SHOWN.tables[0]].ok
    parts = (partial(_steps, rows=shown), partial(_efficiencies, rows=shown))
    return [f.Figure(SHOWN.figures[0], CAPTION, f.stacked(*parts, heights=(3.4, 3)), (7.0, 6.4))]


# --- rows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """counts: the measured ones that it is fitted to. fit: None where no step communicates: then nothing overlaps."""

    training: tr.Training
    links: tr.Links
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

    def left_out(self) -> float | None:
        """Measured over predicted minus one at the largest count, with every term from smaller counts.

        None where these are too few: none at all, or one that cannot tell which part of computing is divided.
        """
        most = max(self.counts)
        rest = [ranks for ranks in self.counts if ranks < most]
        if len(rest) < (2 if self.training.is_replicated else 1):
            return None
        smaller = model_of(self.training, self.links.below(most), rest)
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


def model_of(training: tr.Training, links: tr.Links, counts: Sequence[int] = ()) -> Model | None:
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


def predicted(records: Mapping[str, list[Record]], links: tr.Links) -> list[Record]:
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
    named = {"training": training.name, "scaling": training.scaling, **factors}
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
        residual = 100 * found if fitted or model.base_is_missed() else "0: computing is taken from it"
    return {
        "step_ms": step_ms,
        "model_ms": modelled,
        "residual_percent": residual,
        "samples_per_s": rows / step_ms * 1e3,
        "compute_ms": terms.compute_ms,
        "exposed_ms": terms.exposed_ms(model.overlap),
    }


# --- figure --------------------------------------------------------------------------------------------------------

NOTHING = "not measured on several numbers of ranks"
TITLES = {tr.WEAK: "Weak, same rows a rank", tr.STRONG: "Strong, same batch"}
GREY = "#555555"
LONGEST_OF_TWO = 55  # letters of a training's name with which two stand side by side; the figure is no wider
LEAST_PERCENT = 1.0  # what lies below is no efficiency that anybody would plan with
FILLED: dict[str, Any] = {"markersize": 5, "linewidth": 1.4, "zorder": 3}
HOLLOW: dict[str, Any] = {"markersize": 4, "linewidth": 0.9, "linestyle": "--", "markerfacecolor": "white"}


def _steps(canvas: Any, rows: pd.DataFrame) -> None:
    """A step over ranks, a colour a training."""
    axes = canvas.subplots()
    known = numbers(rows, "step_ms")
    if known.empty:
        f.no_data(axes, NOTHING)
        return
    for number, (name, own) in enumerate(known.groupby("training", sort=False)):
        own = own.sort_values("ranks", kind="stable")
        _line(axes, own, "model_ms", number, **HOLLOW)
        label = f"{name}: {own['scaling'].iloc[0]}"
        _line(axes, own[own["origin"] == of.MEASURED], "step_ms", number, label=label, **FILLED)
    _finish(axes, known, "Step (ms)")
    longest = max(len(label) for label in axes.get_legend_handles_labels()[1])
    columns = 2 if longest <= LONGEST_OF_TWO else 1
    canvas.legend(loc="outside upper center", fontsize=f.LABEL_POINTS - 1, ncols=columns)


def _efficiencies(canvas: Any, rows: pd.DataFrame) -> None:
    """Both efficiencies by the model, in the colours of the steps; of measured steps filled."""
    panels = canvas.subplots(1, 2)
    for axes, (kind, title) in zip(panels, TITLES.items(), strict=True):
        axes.set_title(title)
        known = numbers(rows, f"{kind}_percent")
        if known.empty:
            f.no_data(axes, NOTHING)
            continue
        for number, name in enumerate(dict.fromkeys(rows["training"])):
            own = known[known["training"] == name].sort_values("ranks", kind="stable")
            measured = own[(own["scaling"] == kind) & (own["origin"] == of.MEASURED)]
            off = measured["model_ms"].astype(float) / measured["step_ms"].astype(float)
            _line(axes, own, f"{kind}_percent", number, **HOLLOW)
            _line(axes, measured.assign(measured=measured[f"{kind}_percent"] * off), "measured", number, **FILLED)
        axes.axhline(50, color=GREY, linewidth=0.8, linestyle=":")
        _finish(axes, known, "Efficiency (%)" if kind == tr.WEAK else "")
    lows, highs = zip(*(axes.get_ylim() for axes in panels), strict=True)
    for axes in panels if len(rows) else ():
        axes.set_ylim(max(min(lows), LEAST_PERCENT), max(highs))


def _line(axes: Axes, rows: pd.DataFrame, y: str, number: int, **style: Any) -> None:
    colour, marker = f.COLOURS[number % len(f.COLOURS)], f.MARKERS[number % len(f.MARKERS)]
    axes.plot(rows["ranks"].astype(float), rows[y].astype(float), color=colour, marker=marker, **style)


def _finish(axes: Axes, rows: pd.DataFrame, title: str) -> None:
    axes.set_xscale("log", base=2)
    plain_log(axes)
    f.power_of_two_ticks(axes, [4.0**power for power in range(6)])
    axes.set_xlabel("Ranks")
    axes.set_ylabel(title)
    _shade(axes, rows)


def _shade(axes: Axes, rows: pd.DataFrame) -> None:
    """Grey from behind the last count that anything measured reaches."""
    reached = rows[rows["reach"] != of.MODEL_ONLY]
    last = float(reached["ranks"].max()) if len(reached) else 1.0
    if last >= of.MOST_RANKS:
        return
    begin, end = last * 2**0.5, of.MOST_RANKS * 2**0.5
    axes.axvspan(begin, end, color="#000000", alpha=0.07, linewidth=0)
    axes.set_xlim(right=end)
    place = axes.get_xaxis_transform()
    axes.text(begin * 1.1, 0.98, "model only", transform=place, va="top", fontsize=f.LABEL_POINTS, color=GREY)
