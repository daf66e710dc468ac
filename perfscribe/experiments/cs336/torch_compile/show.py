"""Tables and figure of torch_compile."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from perfscribe.experiments.cs336.torch_compile.levels import SHOWN
from perfscribe.instruments.statistics import TOO_FEW_TURNS, Ratio, ratio
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import references
from perfscribe.show import tables as t

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
VARIANTS = ("eager", "compiled")
# Phases whose ratios are shown by problem; the last is a whole pass.
PHASES = {"attention": ("forward", "backward", "both"), "model": ("forward", "backward", "full_step")}
# Variants and phases in the write-ups' order.
TIMES = {
    "attention": [(variant, phase) for variant in VARIANTS for phase in ("forward", "backward")],
    "model": [(v, phase) for phase in ("forward", "full_step", "backward", "optimizer") for v in VARIANTS],
}
PUBLISHED = {"attention": PHASES["attention"][:2], "model": PHASES["model"]}

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
    "Speed-up of whole models by compiling, forward pass and full training step. Points are medians over turns, bars "
    "the intervals over turns; the dashed line is eager."
)

HOW = (t.factor("backend", "Backend"), t.factor("implementation", "Implementation"))
WHERE = (t.factor("batch", "Batch"), t.factor("dtype", "Dtype"), t.factor("device", "Device"))
FACTORS = {
    "attention": (t.factor("seq_len", "Sequence length"), t.factor("head_dim", "d_model"), *WHERE, *HOW),
    "model": (t.factor("size", "Size"), t.factor("seq_len", "Context"), *WHERE, *HOW),
}


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return times with published ones and speed-ups, of attention and models; and the cost of compiling."""
    shown: list[t.Table] = []
    cells: list[Record] = []
    for problem, name, note in (("attention", "Attention", ATTENTION_NOTE), ("model", "Whole models", MODEL_NOTE)):
        measured = t.having(records["torch_compile"], problem=problem)
        of_problem = [replace(cell, values={**cell.values, **_ratios(cell)}) if cell.ok else cell for cell in measured]
        factors, speedup = FACTORS[problem], f"{name}: speed-up by compiling"
        times = [*factors, *_time_columns(problem)]
        shown.append(t.make(TABLES[len(shown)], f"{name}, eager and compiled", of_problem, times, [note]))
        shown.append(t.make(TABLES[len(shown)], speedup, of_problem, [*factors, *_speedups(problem)], [SPEEDUP_NOTE]))
        cells += of_problem
    return [*shown, t.make(TABLES[4], "What compiling costs", cells, COST, [COST_NOTE])]


# Ratios


def _ratios(record: Record) -> dict[str, Any]:
    """Return the ratios of eager and compiled, and the cost of compiling."""
    values: dict[str, Any] = {}
    phases = PHASES[record.factors["problem"]]
    for phase in phases:
        # by turn over all rounds; an effect must exceed eager against itself
        eager, compiled, again = (t.turns(record, f"{variant}_{phase}_ms") for variant in (*VARIANTS, "eager_again"))
        values |= _speedup(phase, ratio(eager, compiled, again))
    values["turns"] = int(record.factors["turns"]) * len(record.samples["compiled_forward_ms"])
    return values | _cost(record, phases[-1], values[f"{phases[-1]}_verdict"])


def _speedup(phase: str, measured: Ratio) -> dict[str, Any]:
    """Return the ratio as write-ups print it: eager over compiled, above 1 if compiling pays."""
    over = measured.inverse
    named = {"speedup": over.ratio, "verdict": over.verdict, "interval": over.interval, "speedup_spread": over.spread}
    named |= {"low": over.low or TOO_FEW_TURNS, "high": over.high or TOO_FEW_TURNS}
    return {f"{phase}_{name}": value for name, value in named.items()}


def _cost(record: Record, whole: str, verdict: str) -> dict[str, Any]:
    """Return the seconds of compilation, and the number of whole passes after which they are saved."""
    eager_ms, compiled_ms = (t.summary(record, f"{variant}_{whole}_ms").median for variant in VARIANTS)
    first_ms = [float(pass_ms) for pass_ms in record.series["first_passes_ms"]]
    compile_s = max(0.0, sum(first_ms) - len(first_ms) * compiled_ms) / 1e3
    pays = verdict == "faster" and eager_ms > compiled_ms
    return {"compile_s": compile_s, "pays_after": compile_s * 1e3 / (eager_ms - compiled_ms) if pays else "never here"}


# Columns


def _title(phase: str) -> str:
    return phase.replace("_", " ")


def _time_columns(problem: str) -> list[t.Column]:
    columns: list[t.Column] = []
    for variant, phase in TIMES[problem]:
        name = f"{variant}_{phase}_ms"
        columns += t.timed(name, f"{variant.capitalize()}, {_title(phase)} (ms)")
    return [*columns, t.count("compiled_forward_ms"), t.timer("compiled_forward_ms"), *_published(problem)]


def _published(problem: str) -> list[t.Column]:
    """Return columns of the sources' times of each phase, eager and compiled."""

    def levels(record: Record, variant: str) -> Mapping[str, Any]:
        return {**record.factors, "implementation": variant}

    entries = [entry for entry in references.load("torch_compile") if ("size" in entry.factors) == (problem == "model")]
    published = {(entry.source, entry.metric) for entry in entries}
    return [
        t.published(
            "torch_compile",
            source,
            f"{phase}_ms",
            f"{_title(phase).capitalize()}, {variant}, {references.short(source)} (ms)",
            f"{variant}_{phase}_ms_{source}",
            partial(levels, variant=variant),
        )
        for phase in PUBLISHED[problem]
        for variant in VARIANTS
        for source in references.OF_ATTENTION
        if (source, f"{phase}_ms") in published
    ]


def _speedups(problem: str) -> list[t.Column]:
    """Return columns of each phase's speed-up, interval and verdict."""
    columns: list[t.Column] = []
    for phase in PHASES[problem]:
        columns += [
            t.rounded(f"{phase}_speedup", f"{_title(phase).capitalize()}, speed-up (×)"),
            t.value(f"{phase}_interval", "95 % interval", exact=True),
            t.value(f"{phase}_verdict", f"{_title(phase).capitalize()}, compiled is", exact=True),
            *t.unshown(f"{phase}_low", f"{phase}_high"),
        ]
    return [*columns, t.value("turns", "Turns", exact=True), t.count("compiled_forward_ms")]


def _compiled_name(record: Record) -> str:
    level = record.factors
    return f"attention, d_model {level['head_dim']}" if level["problem"] == "attention" else f"model {level['size']}"


COST = [
    t.factor("compiled", "Compiled", _compiled_name),
    t.factor("seq_len", "Length"),
    *WHERE[1:],
    *HOW,
    *t.values(compile_s="Compile (s)", compiler_start_s="Once a process (s)", pays_after="Pays after (passes)"),
    *t.exact(graphs="Graphs", graph_breaks="Graph breaks", recompiles="Recompiles"),
    t.gib("peak_eager", "Peak, eager"),
    t.gib("peak_compiled", "Peak, compiled"),
]


# The figure

STAGGER = 0.06  # in x, as a fraction of the distance between two sizes, so that bars do not overlap


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of whole models' speed-ups by size."""
    draw = f.of(tables[TABLES[3]].ok, _draw)
    return [f.Figure(FIGURES[0], CAPTION, draw, sample="compiled_full_step_ms")]


def _draw(canvas: Any, rows: pd.DataFrame) -> None:
    """Draw forward and full step, one line per context, backend and dtype."""
    sizes = list(dict.fromkeys(rows["size"]))
    groups = list(rows.groupby(f.varying(rows, ("seq_len", "backend", "dtype", "device")), sort=False))
    for axes, phase in zip(canvas.subplots(1, 2, sharey=True), ("forward", "full_step"), strict=True):
        for number, (level, group) in enumerate(groups):
            shift = STAGGER * (number - (len(groups) - 1) / 2)
            places = [sizes.index(size) + shift for size in group["size"]]
            _points(axes, number, places, group, phase, f"context {' '.join(map(str, level))}")
        axes.axhline(1, color="#555555", linewidth=0.8, linestyle="--")
        axes.set_title(_title(phase).capitalize())
        axes.set_xlabel("Model size")
        axes.set_xticks(range(len(sizes)), sizes)
        axes.set_xlim(-0.5, len(sizes) - 0.5)
        axes.legend(fontsize=7)
    canvas.axes[0].set_ylabel("Eager over compiled (×)")


def _points(axes: Any, number: int, places: Sequence[float], group: pd.DataFrame, phase: str, label: str) -> None:
    """Draw a phase's speed-ups with their intervals; no bars if there were too few turns."""
    speedups, low, high = (pd.to_numeric(group[f"{phase}_{n}"], errors="coerce") for n in ("speedup", "low", "high"))
    bars = [(speedups - low).clip(lower=0).to_numpy(float), (high - speedups).clip(lower=0).to_numpy(float)]
    style: dict[str, Any] = {"color": f.COLOURS[number % len(f.COLOURS)], "marker": f.MARKERS[number % len(f.MARKERS)]}
    style |= {"markersize": 4, "linewidth": 1, "capsize": 2, "label": label}
    axes.errorbar(places, speedups.to_numpy(float), yerr=bars, **style)
