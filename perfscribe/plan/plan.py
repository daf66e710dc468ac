"""The plan: what a run will measure and show, one JSON file per unit, rewritten only if its content changes.

Plan files are inputs of the rules, so their content decides what is rerun: comments and mtimes of source files do not
count, and Snakemake's metadata of earlier runs is not needed.
"""

from __future__ import annotations

import copy
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from perfscribe.base import chapters, files, registry
from perfscribe.base.cells import Cell
from perfscribe.base.registry import Shown
from perfscribe.config import resolve
from perfscribe.instruments import nvml
from perfscribe.plan import capabilities, cluster, demands, subjects
from perfscribe.plan.fingerprint import Sources, digest_files
from perfscribe.plan.plan_cells import cell_to_json
from perfscribe.records import form, machine

# The preset with the homework's full grid; tables of every site list its cells, measured or not.
FULL_PRESET = "gpu"
SHARED_KEYS = ("seed", "workshop")
COMMON_KEYS = ("enabled", "rounds", "shards", "isolation", "timeout_s", "alone")
MOST_SHARDS = 10_000
# Fields of a plan that index.json has.
INDEXED = ("site", "preset", "chapters", "shards", "presentations", "datasets", "experiment_datasets")
# Of each chapter: the config with its levels, and the tables that it shows.
Configs = Sequence[tuple[Mapping[str, Any], frozenset[str]]]
SHOWN_KINDS = frozenset(kind.name for kind in fields(Shown))
# Module that decides the content of a data set, by kind.
GENERATORS = {
    "samples": "perfscribe.data.formats",
    "tokens": "perfscribe.data.tokens",
    "squad": "perfscribe.data.squad_tokenised",
    "weights": "perfscribe.data.model_weights",
}


@dataclass
class Plan:
    """A run's jobs. units: content of each plan file, by its name without .json; a job reads one of them."""

    site: str
    preset: str
    chapters: tuple[str, ...]
    shards: dict[str, int] = field(default_factory=dict)  # experiment → number of shards
    presentations: dict[str, Shown] = field(default_factory=dict)
    datasets: dict[str, list[str]] = field(default_factory=dict)  # data set → its files
    experiment_datasets: dict[str, list[str]] = field(default_factory=dict)
    units: dict[str, dict[str, Any]] = field(default_factory=dict)
    cluster: cluster.Cluster | None = None
    # Measuring jobs (experiment, shard) of one GPU each that may share this machine, and how many run at a time.
    at_a_time: int = 1
    beside_others: frozenset[tuple[str, int]] = frozenset()

    @property
    def index(self) -> dict[str, Any]:
        """Data from which the Snakefile builds its graph without reading the units."""
        presentations = {name: vars(shown) for name, shown in self.presentations.items()}
        return {name: getattr(self, name) for name in INDEXED} | {"presentations": presentations}

    def sources(self, experiment: str) -> list[str]:
        """Experiments whose records the tables use: itself if it measures, and those that it reads."""
        measured = [experiment] if experiment in self.shards else []
        return [*measured, *self.presentations[experiment].reads]

    def span_s(self, seconds: Mapping[tuple[str, int], float]) -> float:
        """Expected time in s of jobs (experiment, shard), given that of each; jobs that share the machine overlap."""
        beside_s = [job_s for job, job_s in seconds.items() if job in self.beside_others]
        alone_s = sum(job_s for job, job_s in seconds.items() if job not in self.beside_others)
        return alone_s + max([sum(beside_s) / self.at_a_time, *beside_s])

    def write(self, folder: Path) -> None:
        """Write changed plan files, delete those no longer planned."""
        wanted = {**self.units, "index": self.index}
        if self.cluster is not None:
            wanted[Path(cluster.FILE).stem] = vars(self.cluster)
        for name, unit in wanted.items():
            files.write_json_if_changed(folder / f"{name}.json", unit)
        for path in folder.glob("*.json"):
            if path.stem not in wanted and path.stem != "options":
                path.unlink()


def read_index(folder: Path) -> Plan:
    """Read the plan that another process wrote, without its units; ValueError if missing or malformed."""
    index = files.read_json(folder / "index.json")
    with form.as_written(folder / "index.json"):
        index["chapters"] = tuple(index["chapters"])
        for name, shown in index["presentations"].items():
            # Published sites may list kinds that no longer exist.
            index["presentations"][name] = Shown(**{kind: tuple(shown[kind]) for kind in shown.keys() & SHOWN_KINDS})
        index["shards"] = {form.name(name): form.count(count, MOST_SHARDS) for name, count in index["shards"].items()}
        if index["site"] != folder.parent.name:
            raise ValueError(f"{folder / 'index.json'}: is of site {index['site']!r}")
        return Plan(**{name: index[name] for name in INDEXED}, cluster=cluster.read(folder))


def own_section(config: Mapping[str, Any], experiment: str) -> dict[str, Any]:
    """Experiment-specific keys of its section in a resolved config, plus the shared keys."""
    section = config["experiments"][experiment]
    levels = {key: copy.deepcopy(value) for key, value in section.items() if key not in COMMON_KEYS}
    return levels | {name: copy.deepcopy(config[name]) for name in SHARED_KEYS}


def planned_cells(raw: Mapping[str, Any], experiment: str, preset: str) -> list[Cell]:
    """Return the preset's cells in the order of their tables, then, as skipped, the other cells of the full grid."""
    return _grid(_by_chapter(raw, preset), _by_chapter(raw, FULL_PRESET), experiment)


def _by_chapter(raw: Mapping[str, Any], preset: str) -> Configs:
    """Return the resolved config of each chosen chapter, with the levels that its edition asks for."""
    config = resolve(raw, preset)
    levels = {name: chapters.read(name).levels for name in config["chapters"]}
    return [
        (resolve(raw, preset, asked) if asked else config, chapters.tables_of(name)) for name, asked in levels.items()
    ]


def _sections(configs: Configs, experiment: str) -> list[dict[str, Any]]:
    """Return the experiment's sections of the chapters that show it; of the first if none does."""
    shown = set(registry.shown(experiment).tables)
    using = [config for config, tables in configs if tables & shown] or [configs[0][0]]
    sections = [own_section(config, experiment) for config in using]
    return [section for place, section in enumerate(sections) if section not in sections[:place]]


def _cells(configs: Configs, experiment: str) -> list[Cell]:
    """Return the cells of all chapters, each once."""
    module = registry.module(experiment, "levels")
    try:
        grids = [module.cells(section) for section in _sections(configs, experiment)]
    except KeyError as error:
        raise ValueError(f"{experiment}: cells() asks for {error}, which levels.py does not declare") from error
    except ValueError as error:
        raise ValueError(f"experiments.{experiment}, preset {configs[0][0]['preset']}: {error}") from error
    cells: dict[str, Cell] = {}
    for grid in grids:
        of_grid = {files.canonical(dict(cell.factors)): cell for cell in grid}
        if len(of_grid) != len(grid):
            raise ValueError(f"{experiment}: two cells have the same factors")
        cells |= of_grid
    return [*map(demands.meeting, cells.values())]


def _grid(configs: Configs, full_configs: Configs, experiment: str) -> list[Cell]:
    """Return the cells as planned_cells does, from configs resolved for the preset and for the full grid."""
    preset = configs[0][0]["preset"]
    cells = _cells(configs, experiment)
    full = _cells(full_configs, experiment) if preset != FULL_PRESET else []
    seen = {files.canonical(dict(cell.factors)) for cell in cells}
    left_out = [
        Cell(cell.factors, cell.requires, cell.cost, cell.data, skip=f"preset {preset}")
        for cell in full
        if files.canonical(dict(cell.factors)) not in seen
    ]
    return cells + left_out


def _measure_units(
    plan: Plan, config: Mapping[str, Any], experiment: str, dealt: list[cluster.Share], code: Sources
) -> None:
    section = config["experiments"][experiment]
    cells = [cell for share in dealt for _, cell in share.cells]
    module = registry.module_name(experiment, "measure")
    plan.shards[experiment] = len(dealt)
    plan.experiment_datasets[experiment] = sorted({name for cell in cells if _reads_data(cell) for name in cell.data})
    common = {
        "unit": "measure",
        "experiment": experiment,
        "fingerprint": code.fingerprint(module),
        "libraries": code.libraries(module),
        "rounds": section["rounds"],
        "on_identity_change": config["on_identity_change"],
        "budget_minutes": config["budget_minutes"],
        "seed": config["seed"],
        "datasets": plan.experiment_datasets[experiment],
    }
    for shard, share in enumerate(dealt):
        plan.units[f"measure-{experiment}-{shard}"] = {
            **common,
            **_gpus(cells, share.need if plan.cluster else None),
            "shard": shard,
            "cells": [{"position": position, **cell_to_json(cell)} for position, cell in share.cells],
        }


def _reads_data(cell: Cell) -> bool:
    """Return whether the cell's data sets are needed: not if it is skipped or lacks a package that makes them."""
    return not cell.skip and capabilities.missing(set(cell.requires) & capabilities.PACKAGES) is None


def _cells_by_cost(
    configs: Configs, full_configs: Configs, experiment: str, checkouts: list[subjects.Subject], code: Sources
) -> list[tuple[int, Cell]]:
    """Planned cells and their positions, by ascending cost, so that an interrupted run has most of them.

    Cells of subjects follow ours, one subject after the other, since each has its own process.
    """
    courses = _chapters_of(registry.shown(experiment))
    grid = _grid(configs, full_configs, experiment)
    grid += subjects.cells(experiment, grid, checkouts, code)
    cells = [demands.waiting(cell, experiment, courses) for cell in grid]
    return sorted(
        enumerate(cells), key=lambda pair: (bool(pair[1].skip), str(pair[1].factors.get("subject", "")), pair[1].cost)
    )


def _gpus(cells: Collection[Cell], need: cluster.Need | None) -> dict[str, int]:
    """Number of GPUs of a shard with multi-GPU cells: other cells can be measured if it changes.

    need: of its cluster job; None on this machine.
    """
    if not any(capabilities.gpus_needed(cell.requires) > 1 for cell in cells):
        return {}
    return {"gpus": machine.identity(())["gpu_count"] if need is None else need.gpus}


def _data_units(plan: Plan, configs: Configs, experiment: str, code: Sources) -> None:
    module = registry.module(experiment, "levels")
    if not hasattr(module, "datasets"):
        return
    datasets = ChainMap(*(module.datasets(section) for section in _sections(configs, experiment)))
    for name in plan.experiment_datasets[experiment]:
        dataset = datasets[name]
        kind = dataset.get("kind", "samples")
        plan.datasets[name] = list(dataset["files"])
        plan.units[f"data-{name}"] = {
            "unit": f"data-{name}",
            "dataset": name,
            "kind": kind,
            "parameters": dataset["parameters"],
            "formats": list(dataset.get("formats", [])),
            "fingerprint": code.fingerprint(GENERATORS[kind]),
        }


def _present_unit(plan: Plan, experiment: str, code: Sources) -> None:
    """Plan one experiment's tables and figures. `reads` keeps only experiments that this run measures.

    Without this a single chapter, or a config that lacks some experiments, could not be shown.
    """
    declared = registry.shown(experiment)
    reads = tuple(name for name in declared.reads if name in plan.shards)
    plan.presentations[experiment] = replace(declared, reads=reads)
    folder = code.root / "references"
    references = [folder / f"{name}.csv" for name in (experiment, *declared.reads)]
    # Reference figures may also belong to a whole chapter.
    references += [
        path
        for name in (*declared.references, *_chapters_of(declared))
        if (path := folder / f"{name}.csv").is_file() and path not in references
    ]
    plan.units[f"present-{experiment}"] = {
        "unit": "present",
        "experiment": experiment,
        "site": plan.site,
        "preset": plan.preset,
        "fingerprint": code.fingerprint(registry.module_name(experiment, "show")),
        # The footer below every figure is written by the report's code, whatever show.py imports.
        "footer": code.fingerprint("perfscribe.show.provenance"),
        "references": digest_files(references),
        "tables": list(declared.tables),
        "figures": list(declared.figures),
        "reads": list(reads),
    }


def _chapters_of(presentation: Shown) -> list[str]:
    return list(dict.fromkeys(table.split(".")[0] for table in presentation.tables))


def _is_shown(experiment: str, wanted: Collection[str]) -> bool:
    """Return whether one of these chapters has a table of the experiment."""
    return chapters.wants(wanted, registry.shown(experiment).tables)


def _show(plan: Plan, code: Sources, with_subjects: bool) -> None:
    """Plan the tables of measured experiments, then of those without a measure.py that read a measured one.

    The latter have no section in the config.
    """
    for experiment in plan.shards:
        _present_unit(plan, experiment, code)
    for experiment in sorted(set(registry.known()) - set(registry.measured())):
        shown = registry.shown(experiment)
        if experiment == registry.SUBJECTS:
            if not with_subjects:
                continue
        elif not shown.reads:
            raise ValueError(f"{experiment}: there is no measure.py, and levels.py names no experiment that it reads")
        if set(shown.reads) & set(plan.shards) and _is_shown(experiment, plan.chapters):
            _present_unit(plan, experiment, code)
    _report_unit(plan, code)


def _report_unit(plan: Plan, code: Sources) -> None:
    """Plan the report and its HTML page."""
    root = code.root
    notes = sorted((root / "report" / "notes" / plan.site).glob("*.md"))
    for note in notes:
        if note.stem not in (known := [*chapters.names(), *plan.chapters]):
            raise ValueError(f"{note.relative_to(root)}: expected the name of a chapter: {', '.join(known)}")
    plan.units["report"] = {
        "unit": "report",
        "site": plan.site,
        "preset": plan.preset,
        "chapters": list(plan.chapters),
        "experiments": sorted(plan.presentations),
        "fingerprint": code.fingerprint("perfscribe.report.report"),
        "texts": chapters.digests(plan.chapters, root),
        "references": digest_files(sorted((root / "references").glob("*.csv"))),
        "notes": digest_files(notes),
    }
    folder = root / "perfscribe" / "report"
    plan.units["page"] = {
        "unit": "page",
        "fingerprint": code.fingerprint("perfscribe.report.html"),
        "parts": digest_files(sorted(path for path in folder.iterdir() if path.suffix in (".html", ".css"))),
    }


def build(
    raw: Mapping[str, Any],
    preset: str,
    root: Path,
    settings: Mapping[str, Any] | None = None,
    code: Sources | None = None,
) -> Plan:
    """Plan every unit of a run from a checked config; preset is one of tiny, cpu, gpu.

    settings: of the cluster that measures, from cluster.settings_for; None for this machine. code: modules below root,
    passed to reuse its caches. Raises ValueError if `only` leaves nothing to measure.
    """
    code = code or Sources(root)
    config, configs, full_configs = resolve(raw, preset), _by_chapter(raw, preset), _by_chapter(raw, FULL_PRESET)
    plan = Plan(site=config["site"], preset=preset, chapters=tuple(config["chapters"]))
    measured = [name for name in registry.measured() if _is_wanted(name, config, plan.chapters)]
    if config["only"] and not measured:
        names = ", ".join(config["only"])
        raise ValueError(f"config: only: {names}: not enabled, or shown by no chapter of {', '.join(plan.chapters)}")
    checkouts = [subjects.read(name, path) for name, path in subjects.paths(config, root).items()]
    cells = {name: _cells_by_cost(configs, full_configs, name, checkouts, code) for name in measured}
    dealt = cluster.deal(cells, {name: config["experiments"][name]["shards"] for name in measured}, settings)
    if settings is not None:
        needs = {name: [share.need for share in shares] for name, shares in dealt.items()}
        plan.cluster = cluster.Cluster(settings, needs)
    for experiment in measured:
        _measure_units(plan, config, experiment, dealt[experiment], code)
        _data_units(plan, configs, experiment, code)
    _show(plan, code, bool(checkouts))
    if settings is None and config["share_machine"]:
        _jobs_at_a_time(plan, config)
    return plan


def _jobs_at_a_time(plan: Plan, config: Mapping[str, Any]) -> None:
    """Let one-GPU jobs run at the same time, as many as there are GPUs; a single such job runs by itself."""
    measuring = [unit for unit in plan.units.values() if unit["unit"] == "measure"]
    shards = {
        (unit["experiment"], unit["shard"])
        for unit in measuring
        if not config["experiments"][unit["experiment"]].get("alone") and demands.needs_one_gpu(unit["cells"])
    }
    at_a_time = min(len(shards), len(nvml.gpus_by_uuid()[1])) if len(shards) > 1 else 1
    if at_a_time > 1:
        plan.at_a_time, plan.beside_others = at_a_time, frozenset(shards)


def _is_wanted(experiment: str, config: Mapping[str, Any], wanted: Collection[str]) -> bool:
    """Return whether the experiment is enabled, named by `only` if that is set, and shown by one of the chapters."""
    asked = config["experiments"][experiment]["enabled"] and (not config["only"] or experiment in config["only"])
    return asked and _is_shown(experiment, wanted)


def replan_presentation(committed: Plan, code: Sources) -> Plan:
    """Plan of a committed site: its measuring units stay unchanged, its presentation follows today's code.

    Experiments that no longer exist are dropped. Data sets are not generated again; their digests are published.
    """
    known = registry.measured()
    committed.shards = {name: count for name, count in committed.shards.items() if name in known}
    committed.datasets = {}
    committed.experiment_datasets = {experiment: [] for experiment in committed.shards}
    with_subjects = registry.SUBJECTS in committed.presentations
    committed.presentations = {}
    _show(committed, code, with_subjects)
    return committed


def options(config: Mapping[str, Any], at_a_time: int = 1, root: Path = registry.ROOT) -> dict[str, Any]:
    """Options for running cells, by experiment; no result depends on them, so that an edit reruns nothing.

    at_a_time: number of concurrent one-GPU jobs, from the plan.
    """
    adapters = {name: str(path) for name, path in subjects.paths(config, root).items()}
    return {
        name: {
            "isolation": section["isolation"],
            "timeout_s": section["timeout_s"],
            "tools": config["tools"],
            "at_a_time": 1 if section.get("alone") else at_a_time,
            **({"subjects": adapters} if adapters else {}),
        }
        for name, section in sorted(config["experiments"].items())
    }
