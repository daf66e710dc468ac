"""Make an experiment's tables and figures from its records.

present.py --plan results/SITE/plan/present-EXPERIMENT.json --records FILE [FILE ...]
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from perfscribe.base.one_line import in_one_line, paths  # noqa: E402
from perfscribe.show import presenting, tables  # noqa: E402

if __name__ == "__main__":
    with in_one_line("present", presenting.Undeclared, tables.Blank):
        args = paths(__doc__, "--plan", "--records")
        presenting.present(args.plan, args.records, ROOT)
