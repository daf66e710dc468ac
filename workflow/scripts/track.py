"""Write runs from records for an experiment tracker, if it does not have them yet.

track.py --records FILE [FILE ...] --out results/SITE/tracking/TRACKER.json
"""

import sys

from perfscribe.base import files
from perfscribe.base.one_line import paths
from perfscribe.tracking import trackers

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
