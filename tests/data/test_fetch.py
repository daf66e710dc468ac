"""Fetching SQuAD: both files or neither, checked, and one line where there is no network."""

import json

import pytest

from perfscribe import cli
from perfscribe.data import squad, squad_generated
from perfscribe.verbs import fetch_data


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A local folder instead of the original address."""
    folder = tmp_path / "served"
    folder.mkdir()
    for name, part in zip(fetch_data.NAMES, ("train", "dev"), strict=True):
        (folder / name).write_text(json.dumps(squad_generated.document(7, 0, part, 1)))
    monkeypatch.setattr(fetch_data, "BASE", f"{folder.as_uri()}/")
    return folder


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text('{"data": []}')])
def test_neither_where_one_is_missing_or_no_squad(served, tmp_path, damage) -> None:
    damage(served / fetch_data.NAMES[1])
    with pytest.raises(ValueError, match=rf"^[^\n]*{fetch_data.NAMES[1]}[^\n]*$"):
        fetch_data.squad(tmp_path / "squad")
    assert not (tmp_path / "squad").exists()


def test_no_network_is_one_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fetch_data, "BASE", "http://127.0.0.1:9/")  # nothing listens there
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"fetch-data: http://127.*cannot be fetched.*workshop\.squad$"):
        cli.main(["fetch-data", "squad"])
    assert not list(tmp_path.iterdir())


def test_the_verb_says_what_to_set(served, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    assert cli.main(["fetch-data", "squad"]) == 0
    assert "workshop: {squad: downloads/squad}" in capsys.readouterr().out
    assert len(squad.obtain(tmp_path / fetch_data.FETCHED, 5, 5, 0).training) == 5
    with pytest.raises(ValueError, match="got 'cifar', expected squad"):
        cli.main(["fetch-data", "cifar"])
