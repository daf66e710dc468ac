"""Write runs from records for an experiment tracker, if it does not have them yet.

track.py --records FILE [FILE ...] --out results/SITE/tracking/TRACKER.json
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from perfscribe.base import files  # noqa: E402 (the path must be set first)
from perfscribe.base.one_line import paths  # noqa: E402
from perfscribe.tracking import trackers  # noqa: E402

if __name__ == "__main__":
    args = paths(__doc__, "--records", "--out")
    tracker, results = args.out.stem, args.out.parents[1]
    try:
        rows = [row for path in args.records for row in files.read_json_lines(path)]
        have = trackers.write(rows, trackers.folder_of(results, tracker), tracker, results.name)
    except Exception as error:  # trackers raise many types
        text = " ".join(str(error).split())[:300]
        sys.exit(f"track: {tracker}: {type(error).__name__}: {text}")
    files.write_json(args.out, {"tracker": tracker, "runs": have})
