"""Generates one data set: generate_data.py --plan results/SITE/plan/data-NAME.json --folder DIR.

Writes the formats below DIR and, last, NAME.digest beside DIR.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from perfscribe.base.files import read_json
from perfscribe.data.generate import generate
from perfscribe.records import checksums

PLAN_KEYS = ("dataset", "parameters", "formats")


def main() -> int:
    """Exit status 0, or 1 after one line that says what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="plan file of the data set")
    parser.add_argument("--folder", type=Path, help="for its files; default: data/NAME beside the plan's folder")
    arguments = parser.parse_args()
    try:
        plan = read_json(arguments.plan)
        missing = [key for key in PLAN_KEYS if not isinstance(plan, dict) or key not in plan]
        if missing:
            raise ValueError(f"{arguments.plan}: no plan of a data set: {', '.join(missing)} missing")
        folder = arguments.folder or arguments.plan.parents[1] / "data" / str(plan["dataset"])
        digest = generate(plan, folder)
        made = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        checksums.keep(arguments.plan.parents[1], arguments.plan.stem, [digest, *made])
        print(f"wrote {digest}")
    except (ValueError, TypeError, OSError) as error:
        print(f"generate_data: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
