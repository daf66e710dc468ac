"""Folders in the checkout that Python takes for packages: named, and told before a cell starts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from perfscribe.base.cells import Cell
from perfscribe.records import environment, shadowing
from perfscribe.verbs import doctor

REASON = "'datasets' in the checkout is taken for the Python package datasets"
not_installed = pytest.mark.skipif(find_spec("datasets") is not None, reason="the package datasets is installed")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shadowing, "ROOT", tmp_path)
    return tmp_path


@not_installed
def test_the_trainings_rows_and_the_doctor_name_it(checkout: Path) -> None:
    assert environment.shortfall(("transformers",)) in (None, ("unsupported", "transformers is missing"))
    (checkout / "datasets").mkdir()
    assert environment.shortfall(("transformers",)) == ("unsupported", REASON)
    told = doctor.report([("baseline", [Cell({"model_name": "bloom"}, ("transformers",))])])
    assert "'datasets' in the checkout is taken for" in told
    assert "rename the folder or file datasets in the" in told  # the table breaks lines
