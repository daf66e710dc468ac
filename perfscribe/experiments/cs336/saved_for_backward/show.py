"""Tables and figure of what a transformer block saves for its backward pass."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pandas as pd

from perfscribe.analytic import memory
from perfscribe.analytic.parameters import transformer_tensors
from perfscribe.analytic.shapes import SIZES
from perfscribe.analytic.workload import Workload
from perfscribe.experiments.cs336.saved_for_backward.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
FACTORS = t.factors(size="Size", seq_len="Context", dtype="Dtype", batch="Batch", layers="Blocks run", device="Device")
OPERATION_NOTE = (
    "Of one block, at the operation that saves a tensor first; a storage counts once. Parameters, mask and rotary "
    "tables do not count, autocast's copies of weights do."
)
BLOCK_NOTE = (
    "Saved: by the operations; added and changed: by the block's forward and backward, in the allocator's count (on "
    "CUDA up to 1 MiB more for a tensor). Backward frees what forward added, so gradients are added + changed."
)
CAPTION = (
    "Bytes allocated at the end of each block's forward, then of each block's backward, which begins with the last. A "
    "model of a few blocks without embedding, head and optimizer, at the longest context of the widest size."
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return what one block saves by operation, and what the block's two passes add to the memory."""
    cells = records["saved_for_backward"]
    operations = t.expanded(cells, ["operation"], _operations)
    return [
        t.make(TABLES[0], "Saved for backward by one block, by operation", operations, OPERATIONS, [OPERATION_NOTE]),
        t.make(TABLES[1], "One block's saved tensors and gradients", cells, BY_BLOCK, [BLOCK_NOTE]),
    ]


def _operations(record: Record) -> Iterator[tuple[str, dict[str, Any]]]:
    sizes = record.series["operation_bytes"]
    for operation, size_bytes in zip(record.series["operation"], sizes, strict=True):
        yield operation, {"saved_bytes": size_bytes, "share_percent": 100 * size_bytes / sum(sizes)}


def _saved_gib(record: Record) -> float:
    level = {name: record.factors[name] for name in ("batch", "seq_len", "dtype", "device")}
    return memory.total_bytes(memory.saved_by_block(Workload(SIZES[record.factors["size"]], **level))) / t.GIB


def _ends(way: str, record: Record) -> str:
    return json.dumps(record.series[f"{way}_bytes"])


def _gradients_gib(record: Record) -> float:
    return 4 * sum(transformer_tensors(SIZES[record.factors["size"]])[1:10]) / t.GIB


OPERATIONS = [
    *FACTORS,
    t.factor("operation", "Operation"),
    t.value("saved_bytes", "Saved (MB)", 1e-6, "saved_mb"),
    t.value("share_percent", "Share (%)"),
]
BY_BLOCK = [
    *FACTORS,
    t.gib("saved", "Saved"),
    t.derived("predicted_saved_gib", "Predicted (GiB)", _saved_gib),
    t.gib("added", "Added by forward"),
    t.gib("changed", "Changed by backward"),
    t.gib("gradients", "Gradients"),
    t.derived("predicted_gradients_gib", "Predicted (GiB)", _gradients_gib),
    t.published("saved_for_backward", "csdiywithme", "saved_gb", "Saved, csdiywithme (GB)"),
    *(t.Column(way, way, partial(_ends, way), "unshown", exact=True) for way in ("forward", "backward")),
]


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of memory at the end of each block's passes."""
    return [f.Figure(FIGURES[0], CAPTION, f.of(tables[TABLES[1]].ok, _draw))]


def _draw(canvas: Any, rows: pd.DataFrame) -> None:
    rows = f.main_device(rows)
    rows = rows[rows["size"] == max(rows["size"], key=lambda size: SIZES[size].d_model)]
    rows = rows[rows["seq_len"] == rows["seq_len"].max()].drop_duplicates("dtype")
    level, axes = rows.iloc[0], canvas.subplots()
    courses = [
        [*json.loads(row["forward"]), *reversed(json.loads(row["backward"])[:-1])] for row in rows.to_dict("records")
    ]
    unit, name = f.memory_unit(max(map(max, courses)))
    for number, (row, ends) in enumerate(zip(rows.to_dict("records"), courses, strict=True)):
        axes.plot([end / unit for end in ends], marker=f.MARKERS[number], color=f.COLOURS[number], label=row["dtype"])
    blocks = range(1, level["layers"] + 1)
    axes.set_xticks(range(2 * len(blocks) + 1), ["start", *blocks, *reversed(blocks)])
    axes.axvline(len(blocks), color="#000000", linewidth=0.8, linestyle="--", zorder=0)
    axes.set_title(f"{level['size']}, context {level['seq_len']}, batch {level['batch']}")
    axes.set_xlabel("Block that has ended: forward, then backward (right of the dashed line)")
    axes.set_ylabel(f"Allocated ({name})")
    axes.set_ylim(bottom=0)
    axes.legend()
