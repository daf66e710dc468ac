"""The rules for reports of nsys, as a user calls them."""

import csv
import shutil

import pytest
from workspace import ROOT, Workspace

from perfscribe.instruments.profiling.nvtx_kernels import COLUMNS

SYNTHETIC = ROOT / "tests" / "fixtures" / "nsys" / "synthetic.sqlite"
EXPORTS = "results/elsewhere/nsys"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = Workspace(tmp_path_factory.mktemp("rules"))
    made.only("mixed_precision_accumulation")
    (made.root / EXPORTS).mkdir(parents=True)
    fake = made.root / "tools" / "nsys"
    fake.parent.mkdir()
    fake.write_text(  # its export is the committed one
        '#!/bin/sh\ncase "$1" in --version) echo version 2023.4.4.54; exit ;; esac\nfor word in "$@"; do\n'
        f'case $word in --output=*) cp {SYNTHETIC} "${{word#--output=}}" ;; esac; done\n'
    )
    fake.chmod(0o755)
    text = (made.root / "config.yaml").read_text()
    made.set_config(text.replace("nsys: null ", "nsys: tools/nsys "))
    return made


def test_a_report_becomes_a_summary(workspace: Workspace) -> None:
    (workspace.root / EXPORTS / "a-1.x.nsys-rep").write_bytes(b"report")
    done = workspace.run(f"{EXPORTS}/a-1.x.kernels.csv")
    assert done.returncode == 0, done.stdout
    folder = workspace.root / EXPORTS
    assert sorted(path.name for path in folder.iterdir()) == ["a-1.x.kernels.csv", "a-1.x.nsys-rep", "a-1.x.sqlite"]
    with open(folder / "a-1.x.kernels.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    assert tuple(rows[0]) == COLUMNS and len(rows) == 20
    log = (workspace.root / "logs/elsewhere/nsys_kernels_a-1.x.log").read_text()
    assert "nsys 2023.4.4: 36 kernels, 21 ranges, 19 rows" in log


def test_an_export_of_ones_own_needs_no_nsys_and_what_fails_is_one_line(workspace: Workspace) -> None:
    folder = workspace.root / EXPORTS
    shutil.copyfile(SYNTHETIC, folder / "own.sqlite")
    (folder / "b.nsys-rep").write_bytes(b"report")
    (folder / "broken.sqlite").write_text("text")
    workspace.set_config(
        (workspace.root / "config.yaml").read_text().replace("nsys: tools/nsys ", "nsys: tools/absent ")
    )
    asked = [f"{EXPORTS}/{name}" for name in ("own.kernels.csv", "broken.kernels.csv", "b.sqlite")]
    done = workspace.run("--cores", "1", "--keep-going", *asked)
    assert done.returncode != 0 and "nsys_export: no nsys found" in done.stdout
    assert "broken.sqlite: no SQLite export of nsys" in done.stdout
    assert "Traceback" not in (workspace.root / "logs/elsewhere/nsys_kernels_broken.log").read_text()
    assert (folder / "own.kernels.csv").exists() and not (folder / "broken.kernels.csv").exists()
