"""The rules for reports of nsys, as a user calls them."""

import csv
import shutil
from pathlib import Path

from nvtx_kernels import COLUMNS
from workspace import ROOT, Workspace

SYNTHETIC = ROOT / "tests" / "fixtures" / "nsys" / "synthetic.sqlite"
EXPORTS = "results/elsewhere/nsys"
# Its export of a report is the committed one, and none where the report is empty; its summary of that export is what
# nsys printed, and of another a line, as nsys succeeds there, too.
NSYS = f"""#!/bin/sh
for report; do :; done
case "$1" in --version) echo version 2023.4.4.54; exit ;; esac
if [ "$1" = stats ]; then
    cmp -s "$report" {SYNTHETIC} && cat {SYNTHETIC.with_suffix(".csv")} || echo ERROR: invalid
    exit 0
fi
for word in "$@"; do case $word in --output=*) out="${{word#--output=}}" ;; esac; done
[ -s "$report" ] && cp {SYNTHETIC} "$out"
"""


def test_reports_and_exports_become_summaries_and_what_fails_is_one_line(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    space.only("mixed_precision_accumulation")
    folder, fake = space.root / EXPORTS, space.root / "tools" / "nsys"
    for made in (folder, fake.parent):
        made.mkdir(parents=True)
    fake.write_text(NSYS)
    fake.chmod(0o755)
    space.set_config((space.root / "config.yaml").read_text().replace("nsys: null ", "nsys: tools/nsys "))
    (folder / "a-1.x.nsys-rep").write_bytes(b"report")
    (folder / "b.nsys-rep").touch()
    (folder / "broken.sqlite").write_text("text")
    shutil.copyfile(SYNTHETIC, folder / "own.sqlite")
    names = ("a-1.x.kernels.csv", "own.kernels.csv", "broken.kernels.csv", "b.sqlite")
    done = space.run("--cores", "1", "--keep-going", *(f"{EXPORTS}/{name}" for name in names))
    assert done.returncode != 0 and "nsys_export: nsys export" in done.stdout, done.stdout
    assert "broken.sqlite: nsys 2023.4.4 makes no summary of it: ERROR: invalid" in done.stdout
    assert "Traceback" not in (space.root / "logs/elsewhere/nsys_kernels_broken.log").read_text()
    summaries = [folder / "a-1.x.kernels.csv", folder / "own.kernels.csv"]
    assert sorted(folder.glob("*.csv")) == summaries and (folder / "a-1.x.sqlite").exists()
    for path in summaries:
        rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        assert tuple(rows[0]) == COLUMNS and len(rows) == 20
