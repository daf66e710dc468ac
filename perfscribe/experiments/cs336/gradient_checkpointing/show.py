"""Table and figure of gradient_checkpointing.

One level of recomputation, with N layers in blocks of k, needs the weights, the inputs of N/k blocks and, in the block
that backward has reached, what k layers save. Gradients grow by those of a layer with each that is done, while inputs
are freed. So the peak is either at the loss, with all inputs and three tensors of the logits' size, or in the last
block, with the gradients of all others. analytic.memory replays both, tensor by tensor.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from perfscribe.analytic import memory
from perfscribe.analytic.parameters import transformer_tensors
from perfscribe.analytic.shapes import SIZES
from perfscribe.analytic.workload import Workload
from perfscribe.experiments.cs336.gradient_checkpointing.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t

NONE = "none"
SETTING = {"size": "Size", "seq_len": "Context", "dtype": "Dtype", "batch": "Batch", "device": "Device"}
NOTE = (
    "Peak: of forward and backward, without optimizer state; full step: with AdamW. Inputs: of all blocks together; "
    "saved and gradients: of one layer. Forward, backward and step times are of full steps."
)
CAPTION = (
    "Peak of forward and backward, and median time of a full step, over the layers that backward recomputes as one "
    "(0.5: half a layer), a line per context; bars: ± half the interquartile range. Hollow: predicted peak."
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return a row per block size."""
    cells = records["gradient_checkpointing"]
    baselines = {cell.levels(*SETTING): cell for cell in cells if cell.ok and cell.factors["block_size"] == NONE}
    columns = [
        *t.factors(**SETTING, block_size="Block size (layers)"),
        t.gib("peak_passes", "Peak", "peak"),
        t.derived("predicted_gib", "Predicted (GiB)", lambda record: max(_peaks(record)[:2]) / t.GIB),
        t.gib("peak_full_step", "Full step", "full_step"),
        t.derived("inputs_gib", "Inputs (GiB)", _inputs_gib),
        t.derived("saved_gib", "Saved (GiB)", lambda r: memory.total_bytes(memory.saved_by_block(_load(r))) / t.GIB),
        t.derived("gradients_gib", "Gradients (GiB)", _gradients_gib),
        *(t.median(f"{phase}_ms", f"{phase.capitalize()} (ms)") for phase in ("forward", "backward", "optimizer")),
        *t.timed("full_step_ms", "Full step (ms)", counted="n"),
        replace(
            t.derived("step_ratio", "Step against none", partial(_against_none, baselines), "step_ratio_spread"),
            spread_get=partial(_against_none, baselines, spread=True),
        ),
        t.published("gradient_checkpointing", "csdiywithme", "peak_gib", "Peak, csdiywithme (GiB)"),
    ]
    return [t.make(SHOWN.tables[0], "Recomputation in blocks of layers", cells, columns, [NOTE])]


def _load(record: Record) -> Workload:
    level = {name: record.factors[name] for name in ("batch", "seq_len", "dtype", "device")}
    return Workload(SIZES[record.factors["size"]], **level)


def _peaks(record: Record) -> list[int]:
    """Return the predicted peaks of forward, backward and optimizer, without AdamW's state."""
    block_size = record.factors["block_size"]
    peaks = memory.step_phase_peaks(_load(record), block_size=None if block_size == NONE else float(block_size))
    return [memory.total_bytes(items) - items[memory.STATE] for items in peaks.values()]


def _inputs_gib(record: Record) -> float | str:
    load, block_size = _load(record), record.factors["block_size"]
    return "no blocks" if block_size == NONE else -(-load.shape.layers // block_size) * load.stream_bytes / t.GIB


def _gradients_gib(record: Record) -> float:
    return 4 * sum(transformer_tensors(_load(record).shape)[1:10]) / t.GIB


def _against_none(baselines: Mapping[tuple[Any, ...], Record], record: Record, spread: bool = False) -> float | str:
    """Return a step's time over that without recomputation, or the spread of this ratio."""
    step, baseline = t.summary(record, "full_step_ms"), baselines.get(record.levels(*SETTING))
    if baseline is None:
        return "no step without recomputation"
    plain = t.summary(baseline, "full_step_ms")
    ratio = step.median / plain.median
    return t.ratio_spread(ratio, step, plain) if spread else ratio


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of peak and step time over block size."""
    return [f.Figure(SHOWN.figures[0], CAPTION, f.of(tables[SHOWN.tables[0]].frame, _draw), sample="full_step_ms")]


def _draw(canvas: Any, rows: pd.DataFrame) -> None:
    tried = rows[(rows["block_size"] != NONE) & rows["status"].isin(("ok", "oom"))]
    blocks = f.main_device(tried)
    grouping = f.varying(blocks, ("seq_len", "size", "dtype", "batch"))
    predicted = pd.to_numeric(blocks["predicted_gib"], errors="coerce") * t.GIB
    unit, name = f.memory_unit(predicted.max())
    blocks = blocks.assign(peak=pd.to_numeric(blocks["peak_gib"], errors="coerce") * t.GIB / unit)
    hollow = {"linestyle": "none", "marker": "o", "color": "black", "markerfacecolor": "none", "markersize": 8}
    panels = canvas.subplots(1, 2)
    panels[0].plot(blocks["block_size"].astype(float), predicted / unit, **hollow)
    canvas.legend(handles=[f.key("hollow: predicted", **hollow)], fontsize=f.LABEL_POINTS, loc="outside upper center")
    drawn = (("peak", "", f"Peak ({name})"), ("full_step_ms", "full_step_ms_iqr", "Full step (ms)"))
    for axes, (column, spread, title) in zip(panels, drawn, strict=True):
        measured = blocks[pd.to_numeric(blocks[column], errors="coerce").notna()]
        f.lines(axes, measured, "block_size", column, grouping, lambda levels: " ".join(map(str, levels)), spread)
        f.power_of_two_ticks(axes, sorted(set(blocks["block_size"].astype(float))))
        f.mark_statuses(axes, blocks, "block_size")
        axes.set_title(title)
        axes.set_xlabel("Layers recomputed as one")
