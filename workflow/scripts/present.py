"""Make an experiment's tables and figures from its records.

present.py --plan results/SITE/plan/present-EXPERIMENT.json --records FILE [FILE ...]
"""

import argparse
import gc
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
gc.disable()  # most of what the libraries make stays, and the process soon ends

from perfscribe.base.one_line import in_one_line  # noqa: E402
from perfscribe.show import presenting  # noqa: E402


def main() -> None:
    """Read the arguments and do the work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--records", type=Path, nargs="+", required=True)
    args = parser.parse_args()
    try:
        presenting.present(args.plan, args.records, ROOT)
    except presenting.Undeclared as error:
        sys.exit(str(error))


if __name__ == "__main__":
    with in_one_line("present"):
        main()
