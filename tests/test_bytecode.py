"""Compiled files where the environment asks for none beside their sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfscribe.run import bytecode


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {}),
        ({"PYTHONDONTWRITEBYTECODE": ""}, {}),  # Python takes an empty variable for none, too
        ({"PYTHONDONTWRITEBYTECODE": "1"}, {"PYTHONPYCACHEPREFIX": "/checkout/.perfscribe/bytecode"}),
        ({"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/mine"}, {"PYTHONPYCACHEPREFIX": "/mine"}),
        ({"PYTHONPYCACHEPREFIX": "/mine"}, {"PYTHONPYCACHEPREFIX": "/mine"}),
    ],
)
def test_only_an_environment_that_asks_for_none_is_changed(env: dict[str, str], expected: dict[str, str]) -> None:
    bytecode.keep(env, Path("/checkout"), "/usr")
    assert env == expected


def test_the_checkouts_own_environment_is_compiled_already() -> None:
    """A second copy of what pip compiled costs the first report the time of compiling it all."""
    env = {"PYTHONDONTWRITEBYTECODE": "1"}
    bytecode.keep(env, Path("/checkout"), "/checkout/.venv")
    assert env == {}


def test_python_keeps_compiled_files_there(tmp_path: Path) -> None:
    (tmp_path / "a_module.py").write_text("A = 1\n")
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("PYTHONPYCACHEPREFIX", None)
    bytecode.keep(env, tmp_path, "/usr")
    subprocess.run([sys.executable, "-c", "import a_module"], cwd=tmp_path, env=env, check=True)
    assert list((tmp_path / bytecode.FOLDER).rglob("a_module.*.pyc"))
    assert not (tmp_path / "__pycache__").exists()


def ahead(tmp_path: Path, prefix: str = "/usr") -> list[list[str]]:
    """What is begun ahead in a checkout at tmp_path, run to its end there."""
    begun = bytecode.compile_ahead(tmp_path, prefix)
    assert [process.wait(120) for process in begun] == [0] * len(begun)
    return [list(process.args) for process in begun]  # type: ignore[arg-type]


def test_what_is_imported_late_is_compiled_ahead_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setattr(bytecode, "LAST_OF_TORCH", ("_prims",))
    assert len(ahead(tmp_path)) == 2
    kept = tmp_path / bytecode.FOLDER
    assert list(kept.rglob("sympy/core/symbol.*.pyc"))
    assert list(kept.rglob("torch/_prims/context.*.pyc"))
    assert not ahead(tmp_path)  # all there


def test_nothing_is_compiled_ahead_where_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert not ahead(tmp_path, str(tmp_path / ".venv"))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE")
    assert not ahead(tmp_path)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    monkeypatch.setattr(bytecode, "_origin", lambda package: None)  # a machine without sympy
    assert not ahead(tmp_path)
