"""Write runs for an experiment tracker from records: those that it has not got yet.

track.py --tracker wandb|mlflow --site NAME --records FILE [FILE ...] --out FILE
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from perfscribe.base import files  # noqa: E402 (the package lies beside this folder)
from perfscribe.tracking import trackers  # noqa: E402


def main() -> None:
    """Read the arguments and do the work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tracker", required=True, choices=sorted(trackers.WRITERS))
    parser.add_argument("--site", required=True)
    parser.add_argument("--records", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, required=True, help="list of the runs that the tracker has")
    args = parser.parse_args()
    if lacking := trackers.missing(args.tracker):
        sys.exit(lacking)
    folder = trackers.folder_of(args.out.parents[1], args.tracker)
    try:
        rows = [row for path in args.records for row in files.read_json_lines(path)]
        have = trackers.write(rows, folder, args.tracker, args.site)
    except Exception as error:  # of the tracker's own many kinds
        text = " ".join(str(error).split())[:300]
        sys.exit(f"track: {args.tracker}: {type(error).__name__}: {text}")
    files.write_json(args.out, {"tracker": args.tracker, "runs": have})


if __name__ == "__main__":
    main()
