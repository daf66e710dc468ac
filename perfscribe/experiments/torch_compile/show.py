"""Tables and figure of torch_compile."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from perfscribe.experiments.torch_compile import drawings, rows
from perfscribe.experiments.torch_compile.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import references
from perfscribe.show import tables as t
from perfscribe.show.tables import GIB, Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
SOURCES = {"cs336-writeup-002": "002", "brandon-snider": "brandon-snider", "yyin-dev": "yyin-dev"}
VARIANTS = ("eager", "compiled")
# The phases that write-ups give, by problem.
PUBLISHED = {"attention": ("forward", "backward"), "model": ("forward", "backward", "full_step")}

ATTENTION_NOTE = (
    "Host clock, with a synchronise before and after each phase; eager and compiled are interleaved in one process. "
    "Published times are means over passes in a row."
)
MODEL_NOTE = (
    "Forward keeps its graph and ends with the loss; the loss and the optimizer (AdamW) are not compiled. 002 states "
    "neither context nor dtype, so its figures stand at every one of a size; yyin-dev states no batch."
)
SPEEDUP_NOTE = (
    "Speed-up: eager over compiled, with its interval over turns within this process. Compiled is faster or "
    "slower where the interval excludes one and the effect exceeds that of eager against itself."
)
COST_NOTE = (
    "Compile: the first passes less as many steady ones, from empty caches. Pays after: passes until the time that was "
    "saved makes up for compiling."
)
CAPTION = (
    "Speed-up by compiling. Above: attention over sequence length, forward and backward. Below: whole models, forward "
    "pass and full training step. Points are medians over turns, bars the intervals over turns; the dashed "
    "line is eager."
)

# Variants and phases in the order in which write-ups give them.
PHASES_OF = {
    "attention": (("eager", "forward"), ("eager", "backward"), ("compiled", "forward"), ("compiled", "backward")),
    "model": tuple(
        (variant, phase) for phase in ("forward", "full_step", "backward", "optimizer") for variant in VARIANTS
    ),
}
HOW = (t.factor("backend", "Backend"), t.factor("implementation", "Implementation"))
WHERE = (t.factor("batch", "Batch"), t.factor("dtype", "Dtype"), t.factor("device", "Device"))
FACTORS = {
    "attention": (t.factor("seq_len", "Sequence length"), t.factor("head_dim", "d_model"), *WHERE, *HOW),
    "model": (t.factor("size", "Size"), t.factor("seq_len", "Context"), *WHERE, *HOW),
}


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Attention and models: times beside published ones, speed-ups; and what compiling costs."""
    attention, models = (rows.cells_of(records["torch_compile"], problem) for problem in ("attention", "model"))
    by_problem = [
        ("attention", "Attention", attention, ATTENTION_NOTE, TABLES[:2]),
        ("model", "Whole models", models, MODEL_NOTE, TABLES[2:4]),
    ]
    made = []
    for problem, name, cells, note, (times, speedups) in by_problem:
        factors = FACTORS[problem]
        made += [
            t.make(times, f"{name}, eager and compiled", cells, [*factors, *_time_columns(problem)], [note]),
            t.make(speedups, f"{name}: speed-up by compiling", cells, [*factors, *_speedups(problem)], [SPEEDUP_NOTE]),
        ]
    return [*made, t.make(TABLES[4], "What compiling costs", [*attention, *models], _cost_columns(), [COST_NOTE])]


def _time_columns(problem: str) -> list[t.Column]:
    columns: list[t.Column] = []
    for variant, phase in PHASES_OF[problem]:
        name = f"{variant}_{phase}_ms"
        title = f"{variant.capitalize()}, {rows.TITLES[phase].lower()} (ms)"
        columns += [t.median(name, title), t.iqr(name, "IQR (ms)")]
    return [*columns, t.count("compiled_forward_ms"), t.timer("compiled_forward_ms"), *_published(problem)]


def _published(problem: str) -> list[t.Column]:
    """What the sources print of each phase, eager and compiled; none of them has CUDA graphs."""
    known = [one for one in references.load("torch_compile") if ("size" in one.factors) == (problem == "model")]

    def column(phase: str, variant: str, source: str) -> t.Column:
        metric = f"{phase}_ms"

        def get(record: Record) -> Any:
            if record.factors["implementation"] != "compiled":
                return "none"
            levels = {**record.factors, "implementation": variant}
            found = references.of_source(known, source, metric, levels)
            return "none" if found is None else found.shown

        title = f"{rows.TITLES[phase]}, {variant}, {SOURCES[source]} (ms)"
        return t.Column(f"{variant}_{metric}_{source}", title, get, kind="published", exact=True)

    given = {(one.source, one.metric) for one in known}
    return [
        column(phase, variant, source)
        for phase in PUBLISHED[problem]
        for variant in VARIANTS
        for source in SOURCES
        if (source, f"{phase}_ms") in given
    ]


def _speedups(problem: str) -> list[t.Column]:
    """Of each phase the speed-up, its interval, how far eager strays from itself, and the verdict that follows."""
    columns: list[t.Column] = []
    for phase in rows.PHASES[problem]:
        columns += [
            _spread_value(f"{phase}_speedup", f"{rows.TITLES[phase]}, speed-up (×)"),
            t.value(f"{phase}_interval", "95 % interval", exact=True),
            t.value(f"{phase}_self_percent", "Eager against itself, up to (%)"),
            t.value(f"{phase}_verdict", "Compiled is", exact=True),
            *(_unshown(f"{phase}_{end}") for end in ("low", "high")),
        ]
    return [*columns, t.value("turns", "Turns", exact=True), t.count("compiled_forward_ms")]


def _spread_value(name: str, title: str) -> t.Column:
    """A value rounded by its spread."""
    spread = f"{name}_spread"
    return t.Column(name, title, lambda r: r.values[name], spread=spread, spread_get=lambda r: r.values[spread])


def _unshown(name: str) -> t.Column:
    """A value for the CSV and the figures alone."""
    return t.Column(name, name, lambda record: record.values[name], kind="unshown")


def _cost_columns() -> list[t.Column]:
    return [
        t.Column("compiled", "Compiled", rows.what, kind="factor", exact=True),
        t.factor("seq_len", "Length"),
        *WHERE[1:],
        *HOW,
        t.value("compile_s", "Compile (s)"),
        t.value("compiler_start_s", "Once a process (s)"),
        t.value("pays_after", "Pays after (passes)"),
        t.value("graphs", "Graphs", exact=True),
        t.value("graph_breaks", "Graph breaks", exact=True),
        t.value("recompiles", "Recompiles", exact=True),
        t.value("peak_eager_bytes", "Peak, eager (GiB)", 1 / GIB, "peak_eager_gib"),
        t.derived("peak_compiled_gib", "Peak, compiled (GiB)", rows.compiled_peak_gib),
        t.derived("reserved_eager_gib", "Reserved, eager (GiB)", rows.reserved_gib("eager")),
        t.derived("reserved_compiled_gib", "Reserved, compiled (GiB)", rows.reserved_gib("compiled")),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Speed-ups of attention over sequence length, and of whole models by size."""
    attention = partial(drawings.attention, table=tables[TABLES[1]].frame)
    models = partial(drawings.models, rows=tables[TABLES[3]].ok)
    return [f.Figure(FIGURES[0], CAPTION, f.stacked(attention, models), (7.0, 7.0), sample="compiled_forward_ms")]
