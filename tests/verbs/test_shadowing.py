"""Folders in the checkout that Python takes for packages: found, named, and told before a cell starts."""

from __future__ import annotations

import os
import subprocess
import sys
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


def test_this_checkout_hides_nothing() -> None:
    assert [name for name in shadowing.OF_TRAINER if shadowing.hidden_by(name)] == []


@not_installed
def test_a_data_folder_is_taken_for_a_package_that_is_not_installed(checkout: Path) -> None:
    (checkout / "datasets").mkdir()
    (checkout / "datasets" / "train.json").write_text("{}")
    assert shadowing.hidden_by("datasets") == checkout / "datasets"
    # What goes wrong without the guard.
    code = "import importlib.util, datasets; print(importlib.util.find_spec('datasets').origin); datasets.Dataset"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(checkout)}, capture_output=True, text=True
    )
    assert done.stdout == "None\n" and "module 'datasets' has no attribute 'Dataset'" in done.stderr


def test_a_folder_named_like_an_installed_package_does_no_harm(checkout: Path) -> None:
    (checkout / "psutil").mkdir()
    assert shadowing.hidden_by("psutil") is None
    (checkout / "psutil" / "__init__.py").touch()
    assert shadowing.hidden_by("psutil") == checkout / "psutil"


@not_installed
def test_the_trainings_rows_and_the_doctor_name_it(checkout: Path) -> None:
    assert environment.shortfall(("transformers",)) in (None, ("unsupported", "transformers is missing"))
    (checkout / "datasets").mkdir()
    assert environment.shortfall(("transformers",)) == ("unsupported", REASON)
    told = doctor.report([("baseline", [Cell({"model_name": "bloom"}, ("transformers",))])])
    assert "'datasets' in the checkout is taken for" in told
    assert "rename the folder or file datasets in the" in told  # the table breaks lines
