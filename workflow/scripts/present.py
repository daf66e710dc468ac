"""Make an experiment's tables, figures and findings from its records.

present.py --plan results/SITE/plan/present-EXPERIMENT.json --records FILE [FILE ...]
"""

import argparse
import gc
import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
gc.disable()  # most of what the libraries make stays, and the process soon ends

from perfscribe import figures, files, findings, records, tables  # noqa: E402
from perfscribe.measured_by import figure_footer  # noqa: E402
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
    args = parser.parse_args()
    plan = files.read_json(args.plan)
    site_folder = args.plan.parents[1]
    tables_folder, figures_folder = site_folder / "tables", ROOT / "report" / plan["site"] / "figures"
    experiment = plan["experiment"]
    module = importlib.import_module(present_module(experiment))
    measured = records.load_by_experiment(args.records, site_folder / "environments")

    made = {table.id: table for table in module.tables(measured)}
    check_ids("tables", experiment, plan["tables"], list(made))
    drawn = module.figures(made) if hasattr(module, "figures") else []
    check_ids("figures", experiment, plan["figures"], [figure.id for figure in drawn])
    texts: dict[str, str] = module.files(made) if hasattr(module, "files") else {}
    check_ids("files", experiment, plan["files"], list(texts))
    for table in made.values():
        tables.write(table, tables_folder)
    for name, text in texts.items():
        files.write_text(tables_folder / name, text)
    # The figures of an experiment that measures nothing show what it reads. What was imported was measured by others.
    shown = [experiment] if experiment in measured else measured
    cells = [record for name in shown for record in measured[name] if record.origin == "measured"]
    for figure in drawn:
        footer = figure_footer(cells, plan["site"], site_folder / "environments", figure.sample)
        figures.write(figure, figures_folder, footer)
    captions = {figure.id: figure.caption for figure in drawn}
    files.write_json(tables_folder / f"{experiment}.figures.json", captions)
    findings.write(module.findings(made), tables_folder / f"{experiment}.findings.json")


if __name__ == "__main__":
    main()
