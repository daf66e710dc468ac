"""Measure the cells of one shard that its journal lacks.

measure.py --plan results/SITE/plan/measure-EXPERIMENT-N.json --out RECORDS [--replay]
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from perfscribe.base import files  # noqa: E402 (the package lies beside this folder)
from perfscribe.base.one_line import in_one_line  # noqa: E402
from perfscribe.run import processes  # noqa: E402 (the package lies beside this folder)


def main() -> int:
    """Read the arguments and do the work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True, help="the shard's plan file")
    parser.add_argument(
        "--site-folder", type=Path, help="journal, data, environments; default: the plan's results/SITE"
    )
    parser.add_argument("--out", type=Path, required=True, help="the records file to write")
    parser.add_argument("--replay", action="store_true", help="measure nothing: records from the journal alone")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    site_folder = (args.site_folder or args.plan.parents[1]).resolve()
    if args.replay or args.worker:
        from perfscribe.run import worker  # the supervisor does without all that it imports
    if args.replay:
        worker.replay(args.plan, ROOT, site_folder, args.out)
        return 0
    if args.worker:
        return worker.measure_until_stopped(args.plan, ROOT, site_folder, args.out)
    plan = files.read_json(args.plan)
    folder = site_folder / "journal" / plan["experiment"]
    return processes.supervise([sys.executable, *sys.argv, "--worker"], folder)


if __name__ == "__main__":
    with in_one_line("measure"):
        sys.exit(main())
