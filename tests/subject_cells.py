"""Cells of a subject, as a plan has them."""

from pathlib import Path

from workspace import ROOT

from perfscribe.base.cells import Cell
from perfscribe.plan import plan, subjects
from perfscribe.plan.fingerprint import Sources


def subject_cells(experiment: str, adapters: Path) -> list[Cell]:
    """The subject's cells of preset tiny."""
    of = plan.planned_cells({}, experiment, "tiny")
    return subjects.cells(experiment, of, [subjects.read("yours", adapters)], Sources(ROOT))
