"""Make an experiment's tables and figures from its records.

present.py --plan results/SITE/plan/present-EXPERIMENT.json --records FILE [FILE ...]
"""

from pathlib import Path

from perfscribe.base.one_line import in_one_line, paths
from perfscribe.show import presenting, tables

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    with in_one_line("present", presenting.Undeclared, tables.Blank):
        args = paths(__doc__, "--plan", "--records")
        presenting.present(args.plan, args.records, ROOT)
