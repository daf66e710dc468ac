"""Folders in the checkout that Python takes for packages: named, and told before a cell starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscribe.base.cells import Cell
from perfscribe.records import environment
from perfscribe.verbs import doctor

REASON = "'datasets' in the checkout is taken for the Python package datasets"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    return tmp_path


def test_the_trainings_rows_and_the_doctor_name_it(checkout: Path) -> None:
    assert environment.shortfall(("transformers",)) in (None, ("unsupported", "transformers is missing"))
    (checkout / "datasets").mkdir()
    assert environment.shortfall(("transformers",)) == ("unsupported", REASON)
    told = doctor.report([("baseline", [Cell({"model_name": "bloom"}, ("transformers",))])])
    assert "'datasets' in the checkout is taken for" in told
    assert "rename the folder or file datasets in the" in told  # the table breaks lines
