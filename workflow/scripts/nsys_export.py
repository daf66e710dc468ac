"""Export a report of Nsight Systems to SQLite: nsys_export.py --report NAME.nsys-rep --out NAME.sqlite"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from perfscribe.instruments.profiling import nsys  # noqa: E402 (the package lies beside this folder)


def main() -> int:
    """Exit status 0, or 1 after one line that says what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found = nsys.find()
    if found is None:
        print("nsys_export: no nsys found; put it on PATH or name it in the config, as tools.nsys", file=sys.stderr)
        return 1
    try:
        nsys.export_sqlite(found, args.report, args.out)
    except (nsys.NsysError, OSError) as error:
        print(f"nsys_export: {error}", file=sys.stderr)
        return 1
    print(f"nsys {found.version} wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
