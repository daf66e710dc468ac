"""Tables that the experiments' show.py make of planned cells without figures."""

from functools import cache
from pathlib import Path
from typing import Any

from workspace import ROOT

from perfscribe import config
from perfscribe.base import registry
from perfscribe.base.cells import Cell
from perfscribe.plan import plan, subjects
from perfscribe.plan.fingerprint import Sources
from perfscribe.records.records import Record
from perfscribe.show.tables import Table

EXPERIMENTS = registry.known()


@cache
def raw_config() -> dict[str, Any]:
    """config.yaml as it is committed."""
    return config.load(ROOT / "config.yaml")


def subject_cells(experiment: str, adapters: Path) -> list[Cell]:
    """The cells of a subject, of preset tiny; not those that it has not written."""
    of = plan.planned_cells({}, experiment, "tiny")
    found = subjects.cells(experiment, of, [subjects.read("yours", adapters)], Sources(ROOT))
    return [cell for cell in found if not cell.skip]


@cache
def records(experiment: str, status: str) -> list[Record]:
    """The tiny preset's cells, all of which ended so."""
    cells = plan.planned_cells(raw_config(), experiment, "tiny")
    error = {"requested_bytes": 2**34, "free_bytes": 2**30}
    return [Record(experiment, dict(cell.factors), status, "why", "measured", error=error) for cell in cells]


@cache
def tables(experiment: str, status: str) -> dict[str, Table]:
    """Its tables by id."""
    made = present(experiment).tables({name: records(name, status) for name in sources(experiment)})
    return {table.id: table for table in made}


def sources(experiment: str) -> list[str]:
    """The experiments whose records its tables are made of."""
    own = [experiment] if experiment in registry.measured() else []
    return [*own, *registry.shown(experiment).reads]


def present(experiment: str) -> Any:
    """Its presenting module."""
    return registry.module(experiment, "show")
