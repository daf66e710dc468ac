"""Changed outputs of a unit are due again; outputs that no unit makes any more are deleted, and nothing else."""

import json
import os
from pathlib import Path

import pytest

from perfscribe.base import files
from perfscribe.records import checksums

TABLE, OUTPUT, JOURNAL = "tables/a.csv", "tables/a.findings.json", "journal/a/0.jsonl"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / "local"
    for name in (TABLE, OUTPUT, JOURNAL, "../../report/local/figures/a.svg", "plan/present-a.json"):
        files.write_text(folder / name, "made\n")
    checksums.keep(folder, "present-a", made(folder))
    return folder


def made(folder: Path) -> list[Path]:
    return [folder / name for name in (TABLE, OUTPUT, JOURNAL)] + [folder.parents[1] / "report/local/figures/a.svg"]


def renew(folder: Path, **how: bool) -> list[str]:
    return checksums.renew(folder, {"present-a": OUTPUT}, **how)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        (TABLE, b"maDe\n", "results/local/tables/a.csv differs from its checksum: made again"),
        (OUTPUT, None, "results/local/tables/a.findings.json is missing: made again"),
        (JOURNAL, b"more", f"results/local/{JOURNAL} differs from its checksum: what it lost is measured again"),
        ("../../report/local/figures/a.svg", b"", "report/local/figures/a.svg differs from its checksum: made again"),
    ],
)
def test_what_is_not_is_due_again(site: Path, name: str, content: bytes | None, line: str) -> None:
    assert renew(site) == [] and (site / OUTPUT).is_file()
    (site / name).unlink() if content is None else (site / name).write_bytes(content)
    assert renew(site) == [line]
    assert not (site / OUTPUT).exists()


def test_a_data_set_that_waits_for_a_reader_is_told_once(site: Path) -> None:
    digest, array = site / "data" / "a.digest", site / "data" / "a" / "x.npy"
    for path in (digest, array):
        files.write_text(path, "made\n")
    checksums.keep(site, "data-a", [digest, array])
    array.unlink()
    of_data = {"data-a": "data/a.digest"}
    assert checksums.renew(site, of_data) == ["results/local/data/a/x.npy is missing: made again when a cell reads it"]
    assert not digest.exists() and checksums.renew(site, of_data) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (TABLE, b"Made as it was\n"),
        (TABLE, b"made as it was!"),
        (TABLE, b"made as it was"),
        (JOURNAL, b"made AS it was\n"),
    ],
)
def test_of_a_large_file_both_ends_and_the_size_count_and_of_records_every_byte(
    site: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes
) -> None:
    monkeypatch.setattr(checksums, "HASHED_BYTES", 2)
    (site / name).write_bytes(b"made as it was\n")
    checksums.keep(site, "present-a", made(site))
    os.utime(site / name, (1, 1))
    assert renew(site) == []
    (site / name).write_bytes(content)
    [line] = renew(site)
    assert line.startswith(f"results/local/{name} differs from its checksum")


@pytest.mark.parametrize("content", [None, b"\xff", b'{"tables/a.csv": 1}'])
def test_a_list_that_is_none_makes_an_own_unit_due(site: Path, content: bytes | None) -> None:
    path = site / "checksums" / "present-a.json"
    path.unlink() if content is None else path.write_bytes(content)
    assert renew(site, published=True) == [] and (site / OUTPUT).is_file()
    assert renew(site) == [] and not (site / OUTPUT).is_file()


def test_what_a_unit_no_longer_makes_goes(site: Path) -> None:
    own = site / "tables" / "mine.csv"
    own.write_text("mine")
    checksums.keep(site, "present-a", [site / OUTPUT])
    assert not (site / TABLE).exists() and not made(site)[-1].exists()
    assert (site / JOURNAL).exists() and own.exists()


def test_what_no_unit_makes_any_more_goes(site: Path) -> None:
    assert checksums.clear(site) == []
    (site / "plan" / "present-a.json").unlink()
    assert checksums.clear(site) == ["../../report/local/figures/a.svg", TABLE, OUTPUT]
    assert (site / JOURNAL).is_file() and not list((site / "checksums").iterdir())
    lost = ("tables/attention.figures.json", "tables/cs336.pytorch_attention.csv")  # and their list with them
    for name in (*lost, "tables/mine.csv"):
        files.write_text(site / name, "made\n")
    assert checksums.clear(site) == [*lost] and (site / "tables" / "mine.csv").is_file()


def test_a_data_set_that_only_other_runs_read_stays_known(site: Path) -> None:
    """Else the next run that reads it would not know, at its start, which of its cells are done."""
    digest = site / "data" / "a.digest"
    files.write_text(digest, "made\n")
    checksums.keep(site, "data-a", [digest])
    assert checksums.clear(site) == []
    assert checksums.renew(site, {"data-a": "data/a.digest"}) == [] and digest.is_file()


@pytest.mark.parametrize("name", ["../../report/notes/local/a.md", "journal/a/0.jsonl", "tables/../mine"])
def test_nothing_else_is_ever_deleted(site: Path, name: str) -> None:
    files.write_text(site / name, "mine")
    (site / "checksums" / "present-b.json").write_text(json.dumps({name: "0", "tables/b.csv": "0"}))
    assert checksums.clear(site) == [] and (site / name).is_file()


def test_others_may_read_what_is_written(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a.csv", "made\n")
    assert (tmp_path / "a.csv").stat().st_mode & 0o777 == 0o644
