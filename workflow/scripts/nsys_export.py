"""Export a report of Nsight Systems to SQLite: nsys_export.py --report NAME.nsys-rep --out NAME.sqlite"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from perfscribe.base.one_line import in_one_line, paths  # noqa: E402 (the path must be set first)
from perfscribe.instruments.profiling import nsys  # noqa: E402

if __name__ == "__main__":
    with in_one_line("nsys_export", nsys.NsysError):
        args = paths(__doc__, "--report", "--out")
        found = nsys.find()
        nsys.export_sqlite(found, args.report, args.out)
        print(f"nsys {found.version} wrote {args.out}")
