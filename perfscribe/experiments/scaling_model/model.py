"""A training's model: its terms, the overlap fitted to its measured steps, and what both say of any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscribe.experiments.scaling_model.links import ModelledLinks
from perfscribe.experiments.scaling_model.trainings import DDP, STRONG, Training
from perfscribe.scaling import textbook
from perfscribe.scaling.steps import OverlapFit, Point, Terms, fit_overlap

HOLDS = 0.10  # largest residual, and error of the largest count left out, with which a model is taken to hold
EXACT = 1e-6  # a residual below it is none but for rounding
COMPUTING, LATENCY, BANDWIDTH = "computing", "latency", "bandwidth"


@dataclass(frozen=True)
class Model:
    """counts: the measured ones that it is fitted to. fit: None where no step communicates: then nothing overlaps."""

    training: Training
    links: ModelledLinks
    counts: tuple[int, ...]
    fit: OverlapFit | None

    @property
    def overlap(self) -> float:
        """The share of what could be hidden that is; 0 where nothing could be fitted."""
        return 0.0 if self.fit is None else self.fit.overlap

    def terms(self, ranks: int, scaling: str) -> Terms | None:
        """Of a step; None where ranks outnumber rows."""
        return self.training.terms(ranks, scaling, self.counts, self.links)

    def step_ms(self, ranks: int, scaling: str = "") -> float | None:
        """Of a step, scaled as it was measured where nothing else is said."""
        terms = self.terms(ranks, scaling or self.training.scaling)
        return None if terms is None else terms.step_ms(self.overlap)

    def residual(self, ranks: int) -> float | None:
        """Measured over modelled, minus one; None where nothing was measured."""
        modelled, measured = self.step_ms(ranks), self.training.steps_ms.get(ranks)
        return None if modelled is None or measured is None else measured / modelled - 1

    def base_is_missed(self) -> bool:
        """Whether the step that computing is taken from differs from the model's: it communicates, and overlap hides
        a part of that on more ranks."""
        found = None if self.fit is None or self.training.experiment == DDP else self.residual(min(self.counts))
        return found is not None and abs(found) > EXACT

    def worst(self) -> float | None:
        """The residual farthest from 0, that of the step which computing is taken from too; None without a fit."""
        if self.fit is None:
            return None
        base = self.residual(min(self.counts)) if self.base_is_missed() else None
        return self.fit.worst if base is None else max(self.fit.worst, base, key=abs)

    def efficiency(self, ranks: int, scaling: str) -> float | None:
        """By the model, against one rank by the model."""
        one, own = self.step_ms(1, scaling), self.step_ms(ranks, scaling)
        if one is None or own is None:
            return None
        return one / own / (ranks if scaling == STRONG else 1)

    def measured_efficiency(self, ranks: int) -> float | None:
        """Of a measured step against the measured one of fewest ranks."""
        steps, base = self.training.steps_ms, min(self.counts)
        if ranks not in steps:
            return None
        return steps[base] / steps[ranks] * (base / ranks if self.training.scaling == STRONG else 1)

    def limit(self, ranks: int, scaling: str = "") -> str | None:
        """What takes most of a step: computing, or of what is exposed the larger part, latency or bandwidth."""
        terms = self.terms(ranks, scaling or self.training.scaling)
        if terms is None:
            return None
        if terms.exposed_ms(self.overlap) <= terms.compute_ms:
            return COMPUTING
        return LATENCY if 2 * terms.latency_ms > terms.communication_ms else BANDWIDTH

    def serial_fraction(self) -> float | None:
        """Of the measured steps of fewest and most ranks, by Karp and Flatt (strong) or Gustafson (weak)."""
        steps, few, many = self.training.steps_ms, min(self.counts), max(self.counts)
        if few == many:
            return None
        strong = self.training.scaling == STRONG
        by = textbook.serial_fraction_strong if strong else textbook.serial_fraction_weak
        return by(few, steps[few], many, steps[many])

    def textbook_efficiency(self, ranks: int) -> float | None:
        """Amdahl's or Gustafson's, by the serial fraction; None where that is none between 0 and 1."""
        fraction = self.serial_fraction()
        if fraction is None or not 0 <= fraction <= 1:
            return None
        by = textbook.amdahl_efficiency if self.training.scaling == STRONG else textbook.gustafson_efficiency
        return by(fraction, ranks)

    def left_out(self) -> float | None:
        """Measured over predicted minus one at the largest count, with every term from smaller counts.

        None where these are too few: none at all, or one that cannot tell which part of computing is divided.
        """
        most = max(self.counts)
        rest = [ranks for ranks in self.counts if ranks < most]
        computing = self.training.computing(rest)
        if not rest or (computing is not None and computing.points == 1):
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
        worst = self.worst()
        if worst is None:
            return None
        if abs(worst) > HOLDS:
            return False
        left_out = self.left_out()
        return None if left_out is None else abs(left_out) <= HOLDS


def model_of(training: Training, links: ModelledLinks, counts: Sequence[int] = ()) -> Model | None:
    """The model from these measured counts, by default all; None without a measured step or without collectives.

    The step that computing is taken from says nothing of overlap, and is no point of the fit.
    """
    chosen = tuple(counts or training.counts)
    if not chosen or training.terms(2, training.scaling, chosen, links) is None:
        return None
    fitted = chosen if training.experiment == DDP else [ranks for ranks in chosen if ranks > min(chosen)]
    points = []
    for ranks in fitted:
        terms = training.terms(ranks, training.scaling, chosen, links)
        if terms is not None:
            points.append(Point(ranks, training.steps_ms[ranks], terms))
    return Model(training, links, chosen, fit_overlap(points))
