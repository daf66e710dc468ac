"""Cell, Measurement and Unsupported: the interface between an experiment's measure.py and the engine.

Kept small on purpose: every experiment's fingerprint covers this file, so editing its code remeasures
everything.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

Level = str | int | float | bool | None
Levels = TypeVar("Levels")


class Unsupported(Exception):
    """Raised by run(cell) if the machine lacks what the cell needs; the text is the reason printed."""


@dataclass(frozen=True)
class Cell:
    """One combination of factor levels.

    factors: level by factor name, in the order in which tables show them.
    requires: names of capabilities (plan/capabilities.py) that the machine must have, e.g. "cuda".
    cost: expected work in arbitrary units that are the same within an experiment (FLOP, bytes);
        cells run in ascending order of cost.
    data: names of the data sets that run(cell) reads.
    data_folder: folder that contains them; filled in by the worker.
    round: number of the pass over the grid, from 1; filled in by the worker. Later rounds may leave out what does not
        vary between processes; what they leave out is taken from the first.
    skip: reason why this cell is not measured; such a cell is printed as skipped.
    """

    factors: Mapping[str, Level]
    requires: tuple[str, ...] = ()
    cost: float = 1.0
    data: tuple[str, ...] = ()
    data_folder: str = ""
    round: int = 1
    skip: str = ""

    def __getitem__(self, factor: str) -> Any:
        return self.factors[factor]

    def read(self, levels: type[Levels]) -> Levels:
        """Return those of its factors that this dataclass has as fields; see read()."""
        return read(self.factors, levels)


def read(factors: Mapping[str, Any], levels: type[Levels]) -> Levels:
    """Return those of the factors that this dataclass has as fields; KeyError: one without a default is missing."""
    needed = [field.name for field in fields(levels) if field.name in factors or field.default is MISSING]  # type: ignore[arg-type]
    return levels(**{name: factors[name] for name in needed})


@dataclass
class Measurement:
    """Result of run(cell).

    samples: timed raw samples by name; the name ends in the unit (forward_ms, read_s).
    warmup: warm-up samples, under the same names.
    values: single numbers, counts and texts by name (peak_allocated_bytes, logits_dtype).
    series: longer lists of raw numbers that belong to the cell but are not samples of one quantity.
    timers: for each sample name the timer that read it ("CUDA events", "host clock + synchronise").
    warmup_s, timed_s, compile_s: wall seconds spent on each.
    """

    samples: dict[str, list[float]] = field(default_factory=dict)
    warmup: dict[str, list[float]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    series: dict[str, list[Any]] = field(default_factory=dict)
    timers: dict[str, str] = field(default_factory=dict)
    warmup_s: float = 0.0
    timed_s: float = 0.0
    compile_s: float = 0.0


def grid(levels: Mapping[str, Sequence[Level]]) -> Iterable[dict[str, Level]]:
    """Yield every combination of the levels, the last factor varying fastest."""
    for combination in itertools.product(*levels.values()):
        yield dict(zip(levels, combination, strict=True))
