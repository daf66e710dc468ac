"""The FSDP workshop's scaling tables: records of trainings with those of their baseline, columns, and drawings.

A "GB" of the workshop's titles is 2^30 bytes here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from perfscribe.analytic.weak_scaling import efficiency_percent, inverted_percent, scale_factors, step_flop
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.ceilings import mfu_percent
from perfscribe.training.launching import shape_of

NO_GPU, NO_NVML = "not counted on a CPU", "NVML does not tell"
TWO_STEPS = "too few steps"
GPU_FIGURES = ("avg_gpu_util_%", "avg_mem_alloc_MB", "avg_mem_total_MB", "peak_mem_alloc_MB")
CALLBACK, STEPPING = "train/samples_per_second_mean", "stepping_samples_per_second"
AGAINST = ("samples_scale", "runtime_scale", "efficiency", "inverted")
SCALED = ("placement", "nodes", "world_size", "wrap")  # may differ between a row and its base

SCALE_NOTE = (
    "Samples/s and runtime are of whole trainings, with any evaluation and checkpoints; scale factors compare with the "
    "fewest GPUs of the same loop."
)
CLOCKS_NOTE = (
    "Default: Trainer's samples/s and the GPU's used memory by NVML; callback: the workshop's samples/s, memory "
    "allocated at rest and NVML's utilisation."
)


def nodes_of(record: Record) -> int:
    """Return the number of nodes that the row's ranks are on."""
    return int(record.factors["nodes"])


def ranks_per_node(record: Record) -> int:
    """Return the number of ranks on each node."""
    return int(record.factors["world_size"]) // nodes_of(record)


def step_ms(record: Record) -> float | None:
    """Return the median time of an optimizer step; None if too few were timed."""
    return t.summary(record, "step_ms").median if any(record.samples.get("step_ms", [])) else None


def rows(records: Sequence[Record]) -> list[Record]:
    """Return each record with values relative to its base, the same training on the fewest ranks."""
    ok = [record for record in records if record.ok]
    return [with_figures(record, (one for one in ok if _same_way(record, one))) for record in records]


def by_placement(every: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return the rows on one node, and those on several nodes: single rank first, then by ranks per node and nodes."""
    one = [record for record in every if nodes_of(record) == 1]
    several = [record for record in every if nodes_of(record) > 1]
    ways = list(dict.fromkeys(_way(record) for record in several))
    filled = {(_way(record), ranks) for record in several for ranks in (1, ranks_per_node(record))}
    wraps = {record.factors["wrap"] for record in several} | {"none"}
    of_these = [record for record in one if record.factors["wrap"] in wraps]
    first = [record for record in of_these if (_way(record), ranks_per_node(record)) in filled]
    return one, sorted([*first, *several], key=lambda r: (ways.index(_way(r)), ranks_per_node(r), nodes_of(r)))


def _same_way(record: Record, other: Record) -> bool:
    """Return whether two records differ only in their ranks and are wrapped alike, or one of them is not wrapped."""
    names = (set(record.factors) | set(other.factors)) - set(SCALED)
    ways = {one.factors["wrap"] for one in (record, other)} - {"none"}
    return len(ways) < 2 and all(record.factors.get(name) == other.factors.get(name) for name in names)


def _way(record: Record) -> tuple[str, str]:
    return record.factors["backend"], record.factors["loop"]


def with_figures(record: Record, same: Iterable[Record]) -> Record:
    """Return the record with scale factors, efficiencies and MFU, and texts for values that it lacks.

    same: the ok records of its kind, including itself if ok; the one on the fewest ranks is the base.
    """
    if not record.ok:
        return record
    base = min(same, key=lambda one: int(one.factors["world_size"]))
    absent = NO_GPU if record.factors["device"] == "cpu" else NO_NVML
    lacking = dict.fromkeys(GPU_FIGURES, absent) | dict.fromkeys((CALLBACK, STEPPING), TWO_STEPS)
    found = replace(record, values=lacking | record.values)
    ms = step_ms(found)
    found.values[STEPPING] = _stepping(found)
    found.values |= _against(found, base) | {"rate_efficiency": _rate_efficiency(found, base)}
    found.values["mfu"] = TWO_STEPS if ms is None else mfu_percent(found, _flop(found), ms / 1e3)
    return found


def _against(record: Record, base: Record) -> dict[str, Any]:
    """Return scale factors over the base, and by step time the efficiency and the workshop's inverted one."""
    rate, runtime = record.values["train_samples_per_second"], record.values["train_runtime_s"]
    base_rate, base_s = base.values["train_samples_per_second"], base.values["train_runtime_s"]
    own_ms, base_ms = step_ms(record), step_ms(base)
    by_steps: tuple[Any, Any] = (TWO_STEPS, TWO_STEPS)
    if own_ms is not None and base_ms is not None:
        by_steps = efficiency_percent(base_ms, own_ms), inverted_percent(base_ms, own_ms)
    return dict(zip(AGAINST, (*scale_factors(base_rate, rate, base_s, runtime), *by_steps), strict=True))


def _rate_efficiency(record: Record, base: Record) -> float | str:
    """Return samples/s per rank, by steps only, over the base's (%)."""
    own, of_base = record.values[STEPPING], _stepping(base)
    if not isinstance(own, float) or not isinstance(of_base, float):
        return TWO_STEPS
    ranks: float = record.factors["world_size"] / base.factors["world_size"]
    return 100 * own / of_base / ranks


def _stepping(record: Record) -> Any:
    """Return samples/s by steps only; the meter skips the first step and counts an epoch's last as full: corrected."""
    values, factors = record.values, record.factors
    rate = values.get(STEPPING, TWO_STEPS)
    if rate == TWO_STEPS or "batch_found" in values:
        return rate
    full = factors["batch_size"] * factors["grad_acc"] * factors["world_size"]
    counted = values["stepping_steps"] * full
    return rate * ((factors["train_size"] * factors["num_epochs"] - full) / counted)


def _flop(record: Record) -> float:
    """Return FLOP of a rank per optimizer step, with the batch that a tuned loop has found."""
    factors = record.factors
    rows = record.values.get("batch_found", factors["batch_size"]) * factors["grad_acc"]
    return step_flop(shape_of(factors), rows * factors["max_length"], factors["max_length"])


# --- columns ----------------------------------------------------------------------------------------------------


def _setup(record: Record) -> str:
    """Return the workshop's name of a row."""
    ranks, nodes, each = record.factors["world_size"], nodes_of(record), ranks_per_node(record)
    unit, units = ("GPU", "GPUs") if record.factors["device"] == "cuda" else ("process", "processes")
    if nodes > 1:
        return f"{nodes} Node" if each == 1 else f"{nodes} Node, {each} {units} each"
    return f"Single Node with Single {unit}" if ranks == 1 else f"{ranks} {units}"


def _rows_per_step(record: Record) -> Any:
    return record.values.get("batch_found", record.factors["batch_size"] * record.factors["grad_acc"])


def _first_loss(record: Record) -> Any:
    """Return the first loss logged, of one step or the mean of the first few, or a text if there is none."""
    return next(iter(record.series.get("train_loss", [])), "none logged")


def gib(figure: str, title: str, name: str, without: str = t.NOT_RECORDED) -> t.Column:
    """Return a column in GiB of a meter's value in MiB. without: text for a training that lacks it."""
    return t.value(figure, title, 1 / 1024, name, without=without)


SETUP = [t.factor("setup", "Setup", _setup), t.factor("world_size", "Total GPUs")]
NODES = t.factor("nodes", "Nodes", nodes_of)
WORKLOAD = [
    NODES,
    *t.factors(device="Device", loop="Loop", dtype="Dtype", num_epochs="Epochs", batch_size="Batch a rank"),
    *t.factors(grad_acc="Accumulation", weights="Initial weights"),
    *t.settings("train_size", "max_length", "labels"),
]
ROWS_PER_STEP = t.derived("batch", "Rows a rank and step", _rows_per_step, exact=True)
SAMPLES_CALLBACK = t.value(CALLBACK, "Samples/s (Callback)", column="samples_per_s_callback")
SAMPLES_STEPPING = t.value(STEPPING, "Samples/s of steps alone")
RUNTIME = t.value("train_runtime_s", "Runtime (s)")
SPENT = t.values(evaluation_s="Evaluation (s)", checkpoints_s="Checkpoints (s)")  # of the runtime
LOSS = t.value("train_loss", "Loss")  # the mean over all steps
FIRST_LOSS = t.Column("first_loss", "First loss logged", _first_loss, kind="unshown")
MEMORY_CALLBACK = gib("avg_mem_alloc_MB", "GPU Memory (GiB, Callback)", "avg_mem_alloc_gb")
MEMORY_PEAK = gib("peak_mem_alloc_MB", "Peak allocated (GiB)", "peak_mem_alloc_gb")
MEMORY_RESERVED = gib(
    "avg_mem_reserved_MB", "Reserved by torch (GiB)", "avg_mem_reserved_gb", without="no caching allocator"
)
UTILISATION = t.value("avg_gpu_util_%", "GPU Utilization (%)", column="gpu_util_percent")
MFU = t.value("mfu", "MFU (%)")  # of the data sheet's dense peak
STEPS = [
    *t.only(lambda r: any(r.samples.get("step_ms", [])), TWO_STEPS, *t.timed("step_ms", "Step (ms)", "n")),
    t.timer("step_ms"),
]
WRAPPED = [t.value("wrapped_by", "Wrapped by", exact=True), t.value("units", "Units", exact=True)]


# --- figures ----------------------------------------------------------------------------------------------------


def numbers(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the rows whose column holds a number."""
    found = pd.to_numeric(rows[column], errors="coerce")
    return rows[found.notna()].assign(**{column: found.dropna().astype(float)})


def over_ranks(axes: Any, lines: Iterable[tuple[str, pd.DataFrame]], y: str) -> None:
    """Draw a line over ranks for each name and its rows; bars: the range over rounds, where there are several."""
    for colour, marker, (name, rows) in zip(f.COLOURS, f.MARKERS, lines, strict=False):
        rows = numbers(rows, y).sort_values("world_size", kind="stable")
        ranges = pd.to_numeric(rows.get(f"{y}_spread", pd.Series(index=rows.index)), errors="coerce") / 2
        bars = ranges if ranges.notna().any() else None
        style = {"linewidth": 1, "marker": marker, "markersize": 4, "capsize": 2}
        axes.errorbar(rows["world_size"], rows[y], bars, color=colour, label=name, **style)


def finish(axes: Any, rows: pd.DataFrame, title: str, more: Sequence[Any] = ()) -> None:
    """Label the axes over ranks and add the legend; more: legend handles in addition to the lines."""
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("Ranks")
    axes.set_ylabel(title)
    f.power_of_two_ticks(axes, sorted({float(ranks) for ranks in rows["world_size"]}))
    axes.legend(handles=[*axes.get_legend_handles_labels()[0], *more], fontsize="small")


# Names of the hand-in's rows, by loop and wrapping.
WAYS = {
    ("trainer", "FSDP1"): "as given (FSDP1, one unit)",
    ("trainer", "FSDP2"): "blocks wrapped (FSDP2)",
    ("bare loop", "FSDP2"): "bare loop (FSDP2)",
    ("tuned", "FSDP2"): "tuned (FSDP2)",
}


def ways(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return rows by loop and wrapping, and device if there are two; each wrapping's rows start with unwrapped ones."""
    found = {}
    for (device, loop), own in rows.groupby(["device", "loop"], sort=False):
        for wrap in [wrap for wrap in dict.fromkeys(own["wrapped_by"]) if wrap != "none"] or ["none"]:
            name = WAYS.get((loop, wrap), f"{loop}, not wrapped")
            name += f", {device}" if rows["device"].nunique() > 1 else ""
            found[name] = own[own["wrapped_by"].isin(["none", wrap])]
    return found


def efficiency(canvas: Any, rows: pd.DataFrame) -> None:
    """Draw a line per loop and wrapping of samples/s per rank, over those of its first row; dashed: linear scaling."""
    axes = canvas.subplots()
    rows = numbers(rows, "efficiency")
    over_ranks(axes, ways(rows).items(), "efficiency")
    axes.set_ylim(top=max(110, axes.get_ylim()[1]))
    finish(axes, rows, "Efficiency (%)", [hundred_percent(axes)])


def hundred_percent(axes: Any) -> Any:
    """Draw the line of linear scaling and return its legend handle."""
    axes.axhline(100, color="#555555", linestyle="--", linewidth=0.8)
    return f.key("100 %: in proportion to ranks")


def samples_per_s(canvas: Any, rows: pd.DataFrame, y: str) -> None:
    """Draw a line per loop and wrapping; dashed: linear scaling."""
    axes = canvas.subplots()
    rows = numbers(rows, y)
    groups = ways(rows)
    over_ranks(axes, groups.items(), y)
    for colour, own in zip(f.COLOURS, groups.values(), strict=False):
        ranks = own["world_size"].sort_values()
        first = own.loc[ranks.index[0]]
        linear = [first[y] * count / first["world_size"] for count in ranks]
        axes.plot(ranks, linear, color=colour, linestyle="--", linewidth=0.8)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low / f.LEAST_RANGE, high * f.LEAST_RANGE)
    f.plain_ticks(axes, (1, 2, 5))
    finish(axes, rows, "Samples/s", [f.key("in proportion to ranks")] if rows["world_size"].nunique() > 1 else [])
