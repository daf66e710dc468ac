"""Measure the cells of one shard that its journal lacks.

measure.py --plan results/SITE/plan/measure-EXPERIMENT-N.json --out RECORDS [--replay]
"""

import argparse
import sys
from pathlib import Path

from perfscribe.base import files
from perfscribe.base.one_line import in_one_line
from perfscribe.run import processes

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Replay, measure as worker, or supervise a worker, as the arguments ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True, help="the shard's plan file")
    parser.add_argument("--out", type=Path, required=True, help="the records file to write")
    parser.add_argument("--replay", action="store_true", help="measure nothing: records from the journal alone")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    plan_file = args.plan.absolute()
    # Imported only where needed: the supervisor does without them.
    if args.replay:
        from perfscribe.run.shard import Shard

        Shard(plan_file, ROOT).write_records(args.out, identity=None)
        return 0
    if args.worker:
        from perfscribe.run import worker

        return worker.measure_until_stopped(plan_file, ROOT, args.out)
    folder = plan_file.parents[1] / "journal" / files.read_json(plan_file)["experiment"]
    return processes.supervise([sys.executable, *sys.argv, "--worker"], folder)


if __name__ == "__main__":
    with in_one_line("measure"):
        sys.exit(main())
