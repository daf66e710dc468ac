"""Tables and figures of pytorch_attention."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from perfscribe.analytic import attention_memory as model
from perfscribe.analytic.ledger import Items
from perfscribe.experiments.cs336.attention.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import references
from perfscribe.show import tables as t

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
NOTE = (
    "Passes are timed by the host clock, with a synchronise before and after each; device columns by CUDA events, with "
    "L2 flushed before each pass; softmax and matmuls by torch's profiler, mean of 5 forward passes. 002 and yyin-dev "
    "keep two N × N matrices for backward, ours keeps one; on a CPU there are no cuBLAS workspaces."
)
PASSES = {"forward_ms": "Forward", "backward_ms": "Backward"}
MEMORY = "memory_before_backward_gib"
NO_ALLOCATOR = "no caching allocator"
ON_DEVICE = [
    t.median("forward_device_ms", "Forward, device (ms)"),
    t.median("backward_device_ms", "Backward, device (ms)"),
    t.count("forward_device_ms", "n, device", "device"),
    *t.exact(softmax_kernel="Forward's softmax, kernel"),
    *t.values(softmax_kernel_ms="Softmax (ms)", matmul_kernels_ms="Matmuls (ms)"),
]
PUBLISHED = {"forward_ms": "Forward, {} (ms)", "backward_ms": "Backward, {} (ms)", MEMORY: "Before backward, {} (GiB)"}


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the homework's grid with published values, and the memory of one cell item by item."""
    cells = records["attention"]
    return [t.make(TABLES[0], "Attention in PyTorch, no head axis", cells, COLUMNS, [NOTE]), _accounting(cells)]


def predicted_items(factors: Mapping[str, Any]) -> dict[str, Items]:
    """Return bytes by item that the memory model predicts for a cell before backward, and at backward's peak."""
    call = model.AttentionCall(
        batch=factors["batch"],
        seq_len=factors["seq_len"],
        head_dim=factors["head_dim"],
        element_bytes=2 if factors["dtype"] in ("bf16", "fp16") else 4,
        cublas_handles=2 if factors["device"] == "cuda" else 0,
        device=factors["device"],
    )
    return {"before_backward": model.before_backward(call), "peak": model.backward_peak(call)}


def _predicted(moment: str) -> Callable[[Record], float]:
    return lambda record: sum(predicted_items(record.factors)[moment].values()) / t.GIB


COLUMNS = [
    *t.factors(seq_len="Sequence length", head_dim="d_model", batch="Batch", dtype="Dtype", device="Device"),
    *t.timed("forward_ms", "Forward (ms)"),
    *t.timed("backward_ms", "Backward (ms)"),
    t.count("forward_ms"),
    *t.only(lambda record: "forward_device_ms" in record.samples, "no CUDA device", *ON_DEVICE),
    t.gib("memory_before_backward", "Before backward"),
    t.gib("peak_allocated", "Peak allocated"),
    t.gib("peak_reserved", "Peak reserved", without=NO_ALLOCATOR),
    t.derived("predicted_before_backward_gib", "Before backward, predicted (GiB)", _predicted("before_backward")),
    t.derived("predicted_peak_gib", "Peak, predicted (GiB)", _predicted("peak")),
    t.timer("forward_ms"),
    *(
        t.published("attention", source, metric, title.format(references.short(source)))
        for metric, title in PUBLISHED.items()
        for source in references.OF_ATTENTION
    ),
]


def _accounting(cells: list[Record]) -> t.Table:
    """Tabulate items and total of the smallest cell that ran out of memory, else of the largest that ran."""

    def work(record: Record) -> int:
        return int(record.factors["seq_len"]) ** 2 * int(record.factors["head_dim"])

    out = [record for record in cells if record.status == "oom"]
    cell = min(out, key=work) if out else max((record for record in cells if record.ok), key=work, default=None)
    title = "Predicted memory of one cell"
    columns = [t.factor("item", "Item"), t.value("bytes", "Before backward (MiB)", 1 / t.MIB, "before_backward_mib")]
    if cell is None:
        return t.make(TABLES[1], title, [], columns, ["No cell ran and none ran out of memory."])
    items = predicted_items(cell.factors)["before_backward"]
    items["total"] = sum(items.values())
    rows = [
        Record("attention", {"item": item}, "ok", "", "predicted", values={"bytes": size_bytes})
        for item, size_bytes in items.items()
    ]
    level = cell.factors
    extreme = "smallest that ran out of memory" if out else "largest that ran"
    note = f"The {extreme}: sequence length {level['seq_len']}, d_model {level['head_dim']}, "
    note += f"{level['dtype']} on {level['device']}."
    return t.make(TABLES[1], title, rows, columns, [note])


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of both passes' times over sequence length."""
    caption = (
        "Median time of a forward and a backward pass over sequence length, one line per d_model; bars: ± half the "
        "interquartile range. Host clock."
    )
    return [f.Figure(FIGURES[0], caption, f.of(tables[TABLES[0]].frame, _draw), sample="forward_ms")]


def _draw(canvas: Any, rows: pd.DataFrame) -> None:
    ok = rows[rows["status"] == "ok"]
    grouping = f.varying(ok, ("head_dim", "dtype", "device", "batch"))
    for axes, (sample, title) in zip(canvas.subplots(1, 2, sharex=True), PASSES.items(), strict=True):
        f.lines(
            axes, ok, "seq_len", sample, grouping, lambda levels: "d " + " ".join(map(str, levels)), f"{sample}_iqr"
        )
        f.power_of_two_ticks(axes, sorted(set(ok["seq_len"].astype(float))))
        f.mark_statuses(axes, rows, "seq_len")
        axes.set_title(title)
        axes.set_xlabel("Sequence length")
        axes.set_ylabel("Time (ms)")
