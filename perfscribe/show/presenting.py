"""Makes an experiment's tables, figures and captions from its records, as files."""

from collections.abc import Sequence
from pathlib import Path

from perfscribe.base import files, registry
from perfscribe.records import checksums, records
from perfscribe.show import figures, tables
from perfscribe.show.provenance import figure_footer


class Undeclared(ValueError):
    """A show.py makes other tables or figures than declared; the message lists both."""


def _check_ids(kind: str, experiment: str, declared: list[str], actual: list[str]) -> None:
    if declared != actual:
        raise Undeclared(f"{experiment}: show.py declares the {kind} {declared} and makes {actual}")


def present(plan_file: Path, record_files: Sequence[Path], root: Path) -> None:
    """Make all tables and figures declared in a plan file, results/SITE/plan/present-EXPERIMENT.json.

    record_files: of the experiment and of those that it reads. Raises Undeclared.
    """
    plan = files.read_json(plan_file)
    site_folder = plan_file.parents[1]
    folder, experiment = site_folder / "tables", plan["experiment"]
    module = registry.module(experiment, "show")
    measured = records.load_by_experiment(record_files, site_folder / "environments")
    if experiment != registry.SUBJECTS:  # only its tables show subjects' rows
        measured = {name: [r for r in group if "subject" not in r.factors] for name, group in measured.items()}

    by_id = {table.id: table for table in module.tables(measured)}
    _check_ids("tables", experiment, plan["tables"], list(by_id))
    drawn = module.figures(by_id) if hasattr(module, "figures") else []
    _check_ids("figures", experiment, plan["figures"], [figure.id for figure in drawn])
    for table in by_id.values():
        tables.write(table, folder)
    pictures = root / "report" / site_folder.name / "figures"
    # The experiment's cells; one that measures nothing shows those that it reads.
    shown = [measured[experiment]] if experiment in measured else measured.values()
    cells = [record for group in shown for record in group]
    captions = {}
    for figure in drawn:
        footer = figure_footer(cells, plan["site"], site_folder / "environments", figure.sample)
        if figures.write(figure, pictures, footer):
            captions[figure.id] = figure.caption
    captions_file = folder / f"{experiment}.figures.json"
    files.write_json(captions_file, captions)
    written = [captions_file]
    written += [folder / f"{table}.{kind}" for table in by_id for kind in ("csv", "json")]
    written += [pictures / f"{figure.id}.svg" for figure in drawn]
    checksums.keep(site_folder, plan_file.stem, written)
