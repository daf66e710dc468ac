"""Make an experiment's tables, figures and findings from its records.

present.py --plan PLAN --records FILE [FILE ...] --tables FOLDER --figures FOLDER --environments FOLDER
"""

import argparse
import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from perfscribe import figures, files, findings, records, report, tables  # noqa: E402
from perfscribe.plan_cells import present_module  # noqa: E402


def check_ids(kind: str, experiment: str, declared: list[str], made: list[str]) -> None:
    """SystemExit with one line where present.py makes other things than it declares."""
    if declared != made:
        sys.exit(f"{experiment}: present.py declares the {kind} {declared} and makes {made}")


def main() -> None:
    """Read the arguments and do the work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--records", type=Path, nargs="+", required=True)
    parser.add_argument("--tables", type=Path, required=True, help="folder for CSV, JSON and findings")
    parser.add_argument("--figures", type=Path, required=True, help="folder for SVG and PNG")
    parser.add_argument("--environments", type=Path, required=True, help="folder of the identities")
    args = parser.parse_args()
    plan = files.read_json(args.plan)
    experiment = plan["experiment"]
    module = importlib.import_module(present_module(experiment))
    measured = records.load_by_experiment(args.records)

    made = {table.id: table for table in module.tables(measured)}
    check_ids("tables", experiment, plan["tables"], list(made))
    drawn = module.figures(made) if hasattr(module, "figures") else []
    check_ids("figures", experiment, plan["figures"], [figure.id for figure in drawn])
    for table in made.values():
        tables.write(table, args.tables)
    footer = report.figure_footer(measured[experiment], plan["site"], args.environments)
    for figure in drawn:
        figures.write(figure, args.figures, footer)
    captions = {figure.id: figure.caption for figure in drawn}
    files.write_json(args.tables / f"{experiment}.figures.json", captions)
    findings.write(module.findings(made), args.tables / f"{experiment}.findings.json")


if __name__ == "__main__":
    main()
