"""One side of a comparison: its cells, and the machines that measured them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from perfscribe.base import files
from perfscribe.records.records import Record, merge_rounds

Rows = Iterable[Mapping[str, Any]]
# What makes a machine another one. What else an identity holds is software: driver, CUDA, Python, libraries.
HARDWARE = (
    "gpu_model",
    "gpu_count",
    "gpu_memory_bytes",
    "gpu_power_limit_w",
    "cpu_model",
    "cpu_cores",
    "platform",
)


@dataclass(frozen=True)
class Cell:
    """A cell of one side. rows: its records, one a round; record: these as one. seed: None where it is not known."""

    experiment: str
    rows: tuple[Mapping[str, Any], ...]
    record: Record
    seed: int | None = None

    @property
    def factors(self) -> dict[str, Any]:
        """Its levels."""
        return self.record.factors

    @property
    def ids(self) -> frozenset[str]:
        """Its records' ids: the same measurement has the same id at every site and revision."""
        return frozenset(str(row["id"]) for row in self.rows)

    @property
    def good(self) -> list[Mapping[str, Any]]:
        """Its rounds that are ok."""
        return [row for row in self.rows if row["status"] == "ok"]

    def samples(self, name: str) -> list[list[float]]:
        """Samples of a name, a list a round; of a value one sample a round, as far as it is a number."""
        found = [row["samples"][name] for row in self.good if row["samples"].get(name)]
        return found or [[float(value)] for row in self.good if is_number(value := row["values"].get(name))]

    @cached_property
    def names(self) -> list[str]:
        """Names of its samples and of its values that are numbers."""
        found: dict[str, None] = {}
        for row in self.good:
            found |= dict.fromkeys(name for name, samples in row["samples"].items() if samples)
            found |= dict.fromkeys(name for name, value in row["values"].items() if is_number(value))
        return list(found)

    def values(self, name: str) -> set[str]:
        """What its rounds say of a value, as text."""
        return {str(row["values"][name]) for row in self.good if name in row["values"]}

    def of_rows(self, name: str) -> set[Any]:
        """What its rounds have in a field of the record."""
        return {row[name] for row in self.good}


@dataclass
class Side:
    """One side: what it is called, its cells by experiment and factors, its identities by id.

    name: as the user wrote it. site: whose results these are.
    """

    name: str
    site: str
    cells: dict[str, dict[str, Cell]]
    identities: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def identity(self, cell: Cell, part: str) -> dict[str, set[str]]:
        """What the machines of a cell say, by key, as texts; part: hardware or software."""
        found: dict[str, set[str]] = {}
        for identity in (self.identities.get(name, {}) for name in cell.record.environments):
            for key, value in _flat(identity).items():
                if (key in HARDWARE) == (part == "hardware"):
                    found.setdefault(key, set()).add(value)
        return found

    @property
    def used(self) -> list[Mapping[str, Any]]:
        """The identities of the machines that measured its cells."""
        names = {name for of in self.cells.values() for cell in of.values() for name in cell.record.environments}
        return [self.identities[name] for name in sorted(names) if name in self.identities]

    def together(self) -> dict[str, set[str]]:
        """What its machines say, by key, as texts."""
        found: dict[str, set[str]] = {}
        for identity in self.used:
            for key, value in _flat(identity).items():
                found.setdefault(key, set()).add(value)
        return found


def is_number(value: Any) -> bool:
    """Whether a value is a figure: neither text nor yes and no."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _flat(identity: Mapping[str, Any]) -> dict[str, str]:
    """An identity's parts as texts, each library one of them."""
    found = {key: "none" if value is None else str(value) for key, value in identity.items() if key != "libraries"}
    return found | {name: str(version or "not installed") for name, version in identity.get("libraries", {}).items()}


def key_of(factors: Mapping[str, Any]) -> str:
    """By what cells of one experiment are told apart."""
    return files.canonical(dict(factors))


def of_rows(experiment: str, rows: Rows, seed: int | None = None) -> dict[str, Cell]:
    """Cells by factors, of records of all rounds in the order of their places."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(key_of(row["factors"]), []).append(row)
    return {key: Cell(experiment, tuple(group), merge_rounds(group)[0], seed) for key, group in grouped.items()}
