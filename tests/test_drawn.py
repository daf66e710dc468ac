"""What report runs have made and no longer make is taken away, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from workspace import ROOT

from perfscribe import drawn, files

SITE = "demo"


def unit(experiment: str, tables: list[str], figures: list[str], names: tuple[str, ...] = ()) -> dict:
    return {"experiment": experiment, "tables": tables, "figures": figures, "files": list(names)}


ONE = unit("one", ["fsdp.one", "fsdp.more"], ["fsdp.one"], ("board.csv",))
TWO = unit("two", ["fsdp.two"], ["fsdp.two", "fsdp.other"])


def make(root: Path, *units: dict) -> list[Path]:
    """What a run makes of these units, its plan among it."""
    folder, made = root / "results" / SITE, []
    for one in units:
        files.write_json(folder / "plan" / f"present-{one['experiment']}.json", one)
        for name in one["tables"]:
            files.write_json(folder / "tables" / f"{name}.json", {"id": name, "columns": [], "notes": []})
            files.write_text(folder / "tables" / f"{name}.csv", "a\n")
        for name in one["files"]:
            files.write_text(folder / "tables" / name, "a\n")
        files.write_json(folder / "tables" / f"{one['experiment']}.findings.json", [])
        files.write_json(folder / "tables" / f"{one['experiment']}.figures.json", dict.fromkeys(one["figures"], ""))
        for name in one["figures"]:
            for kind in drawn.FIGURE_KINDS:
                files.write_text(root / "report" / SITE / "figures" / f"{name}.{kind}", "<svg/>")
    for parent, names in drawn.declared(units).items():
        made += [root / parent / SITE / name for name in names]
    assert all(path.is_file() for path in made)
    return made


@pytest.mark.parametrize("listed", [True, False], ids=["by the list", "by the descriptions"])
def test_of_an_experiment_that_is_gone_nothing_stays(tmp_path: Path, listed: bool) -> None:
    kept, gone = make(tmp_path, ONE), make(tmp_path, TWO)
    if listed:
        assert drawn.clear(tmp_path, SITE, ["one", "two"]) == []
    removed = drawn.clear(tmp_path, SITE, ["one"])
    assert {tmp_path / name for name in removed} == set(gone)
    assert all(path.is_file() for path in kept) and not [path for path in gone if path.exists()]


def test_a_table_and_a_figure_that_an_experiment_drops(tmp_path: Path) -> None:
    make(tmp_path, ONE, TWO)
    drawn.clear(tmp_path, SITE, ["one", "two"])
    kept = make(tmp_path, unit("one", ["fsdp.one"], []), TWO)
    removed = drawn.clear(tmp_path, SITE, ["one", "two"])
    tables = [f"results/{SITE}/tables/{name}" for name in ("board.csv", "fsdp.more.csv", "fsdp.more.json")]
    assert removed == [*tables, *(f"report/{SITE}/figures/fsdp.one.{kind}" for kind in ("png", "svg"))]
    assert all(path.is_file() for path in kept)
    assert drawn.clear(tmp_path, SITE, ["one", "two"]) == []


def test_a_users_files_stay(tmp_path: Path) -> None:
    made = make(tmp_path, ONE)
    mine = [
        tmp_path / "results" / SITE / "tables" / "fsdp.mine.csv",
        tmp_path / "results" / SITE / "tables" / "fsdp.mine.json",
        tmp_path / "report" / SITE / "figures" / "fsdp.mine.svg",
        tmp_path / "report" / SITE / "figures" / "fsdp.mine.png",
        tmp_path / "report" / SITE / "mine.md",
    ]
    for path in mine:
        files.write_text(path, "no JSON")
    assert drawn.clear(tmp_path, SITE, ["one"]) == []
    assert drawn.clear(tmp_path, SITE, []) != []
    assert all(path.is_file() for path in mine) and not [path for path in made if path.exists()]


def test_a_list_takes_nothing_from_elsewhere(tmp_path: Path) -> None:
    make(tmp_path, ONE)
    (tmp_path / "secret").write_text("a user's own")
    (tmp_path / "results" / SITE / "published.json").write_text("{}")
    listed = {"results": ["../../secret", "tables/../published.json", "published.json"], "elsewhere": ["tables/x"]}
    files.write_json(tmp_path / "results" / SITE / drawn.LIST, listed)
    assert drawn.clear(tmp_path, SITE, ["one"]) == []
    assert (tmp_path / "secret").exists() and (tmp_path / "results" / SITE / "published.json").exists()


@pytest.mark.parametrize("site", ["h200", "h200x4"])
def test_committed_sites_hold_what_is_made_and_nothing_else(site: str) -> None:
    folder = ROOT / "results" / site
    units = [files.read_json(path) for path in sorted((folder / "plan").glob("present-*.json"))]
    for parent, names in drawn.declared(units).items():
        below = "tables" if parent == "results" else "figures"
        there = {f"{below}/{path.name}" for path in (ROOT / parent / site / below).iterdir()}
        # Pictures of a committed site are drawn again where they are needed, as bitmaps.
        assert {name for name in there if not name.endswith(".png")} == {n for n in names if not n.endswith(".png")}
