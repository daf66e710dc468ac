"""Fetching SQuAD: both files or neither, checked, and one line where there is no network."""

import http.server
import json
import threading

import pytest

from perfscribe import cli
from perfscribe.data import squad, squad_generated
from perfscribe.verbs import fetch_data


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves a folder on this machine in place of the original address."""
    served = tmp_path / "served"
    served.mkdir()
    for name, part in zip(fetch_data.NAMES, ("train", "dev"), strict=True):
        (served / name).write_text(json.dumps(squad_generated.document(7, 0, part, 1)))

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, directory=str(served), **named)

        def log_message(self, *_):
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    monkeypatch.setattr(fetch_data, "BASE", f"http://127.0.0.1:{running.server_address[1]}/")
    yield served
    running.shutdown()
    running.server_close()


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text('{"data": []}')])
def test_neither_where_one_is_missing_or_no_squad(server, tmp_path, damage) -> None:
    damage(server / fetch_data.NAMES[1])
    with pytest.raises(ValueError, match=fetch_data.NAMES[1].replace(".", r"\.")) as failure:
        fetch_data.squad(tmp_path / "squad")
    assert "\n" not in str(failure.value)
    assert not (tmp_path / "squad").exists()


def test_no_network_is_one_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fetch_data, "BASE", "http://127.0.0.1:9/")  # nothing listens there
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"fetch-data: http://127.*cannot be fetched.*workshop\.squad$"):
        cli.main(["fetch-data", "squad"])
    assert not list(tmp_path.iterdir())


def test_the_verb_says_what_to_set(server, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    assert cli.main(["fetch-data", "squad"]) == 0
    assert "workshop: {squad: downloads/squad}" in capsys.readouterr().out
    folder = tmp_path / fetch_data.FETCHED
    assert squad.files_in(folder) == tuple(folder / name for name in fetch_data.NAMES)
    assert len(squad.obtain(folder, 5, 5, 0).training) == 5
    with pytest.raises(ValueError, match="got 'cifar', expected squad"):
        cli.main(["fetch-data", "cifar"])
