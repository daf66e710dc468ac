"""Tables, figures and answers of pytorch_attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.counters.memory import WORKSPACE
from perfscribe.experiments.attention import answers
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.statistics import format_figure
from perfscribe.tables import GIB, Table

TABLES = ("cs336.pytorch_attention", "cs336.attention_published", "cs336.attention_accounting")
FIGURES = ("cs336.attention_by_length",)
SOURCES = {"cs336-writeup-002": "002", "brandon-snider": "brandon-snider", "yyin-dev": "yyin-dev"}
NOTE = (
    "Passes timed by the host clock, the device synchronised before and after each, as the homework asks; device "
    "columns by CUDA events with L2 flushed before each pass. Memory before backward counts everything allocated "
    "then. This implementation allocates two N × N matrices in a forward pass and keeps one, the softmax, for backward."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The homework's grid; the same beside the published figures; the memory of one cell, item by item."""
    cells = records["attention"]
    return [
        t.make(TABLES[0], "Attention in PyTorch, no head axis", cells, _measured_columns(), [NOTE]),
        t.make(TABLES[1], "Attention beside published figures", cells, _published_columns(), _published_notes(cells)),
        answers.accounting(TABLES[2], cells),
    ]


PUBLISHED_NOTE = (
    "Sources, their hardware and licences: references/sources.csv; 002 is a write-up whose hardware is not stated, "
    "brandon-snider and yyin-dev ran on H100. 002 and yyin-dev keep two N × N matrices, brandon-snider and ours one: "
    "memory on a CUDA device differs for that reason. The write-ups' forward and backward are means; ours are medians "
    "of the same passes."
)


def _published_notes(cells: list[Record]) -> list[str]:
    """Where the figures come from, and what our memory lacks of theirs where cells ran on a CPU."""
    on_cpu = [record for record in cells if record.ok and record.factors["device"] == "cpu"]
    if not on_cpu:
        return [PUBLISHED_NOTE]
    on_gpu = answers.predicted_items({**on_cpu[0].factors, "device": "cuda"})["before_backward"]
    workspaces = f"{format_figure(on_gpu[WORKSPACE] / GIB)} GiB"
    return [
        PUBLISHED_NOTE,
        f"Rows of a CPU hold no workspaces of cuBLAS, which take {workspaces} of a CUDA device at every length and "
        "width: their memory does not compare with what was published of GPUs.",
    ]


def _factors() -> list[t.Column]:
    return [
        t.factor("seq_len", "Sequence length"),
        t.factor("head_dim", "d_model"),
        t.factor("batch", "Batch"),
        t.factor("dtype", "Dtype"),
        t.factor("device", "Device"),
    ]


def _on_device(sample: str, title: str) -> t.Column:
    """A median by CUDA events; a CPU has none."""

    def get(record: Record) -> Any:
        if sample not in record.samples:
            return "no CUDA device"
        return t.summary(record, sample).median

    return t.derived(sample, title, get)


def _measured_columns() -> list[t.Column]:
    return [
        *_factors(),
        t.median("forward_ms", "Forward (ms)"),
        t.iqr("forward_ms", "IQR (ms)"),
        t.median("backward_ms", "Backward (ms)"),
        t.iqr("backward_ms", "IQR (ms)"),
        t.count("forward_ms"),
        _on_device("forward_device_ms", "Forward, device (ms)"),
        _on_device("backward_device_ms", "Backward, device (ms)"),
        t.derived("device_n", "n, device", _device_count, exact=True),
        t.value("memory_before_backward_bytes", "Before backward (GiB)", 1 / GIB, "memory_before_backward_gib"),
        t.value("peak_allocated_bytes", "Peak allocated (GiB)", 1 / GIB, "peak_allocated_gib"),
        t.derived("peak_reserved_gib", "Peak reserved (GiB)", _reserved_gib),
        t.derived("predicted_before_backward_gib", "Before backward, predicted (GiB)", _predicted("before_backward")),
        t.derived("predicted_peak_gib", "Peak, predicted (GiB)", _predicted("peak")),
        t.timer("forward_ms"),
    ]


def _device_count(record: Record) -> Any:
    if "forward_device_ms" not in record.samples:
        return "no CUDA device"
    return t.summary(record, "forward_device_ms").n


def _reserved_gib(record: Record) -> Any:
    reserved = record.values.get("peak_reserved_bytes")
    return "no caching allocator" if reserved is None else reserved / GIB


def _predicted(moment: str) -> Any:
    return lambda record: sum(answers.predicted_items(record.factors)[moment].values()) / GIB


def _published_columns() -> list[t.Column]:
    known = ("seq_len", "head_dim", "dtype", "batch")
    columns = _factors()
    for metric, title, column in (
        ("forward_ms", "Forward", t.median("forward_ms", "Forward (ms)")),
        ("backward_ms", "Backward", t.median("backward_ms", "Backward (ms)")),
    ):
        columns += [column, t.iqr(metric, "IQR (ms)")]
        columns += [
            t.published("attention", metric, source, f"{title}, {name} (ms)", known) for source, name in SOURCES.items()
        ]
    memory = "memory_before_backward_gib"
    columns.append(t.value("memory_before_backward_bytes", "Before backward (GiB)", 1 / GIB, memory))
    columns += [
        t.published("attention", memory, source, f"Before backward, {name} (GiB)", known)
        for source, name in SOURCES.items()
    ]
    return columns


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """How time and memory grow, what one matrix takes, what would remove the cost, and how good the model is."""
    rows = tables[TABLES[0]].ok
    names = TABLES[:1]
    return [
        find("cs336.attention_exponent", names, lambda: answers.exponents(rows)),
        find("cs336.attention_matrix", names, lambda: answers.matrix_share(rows)),
        find("cs336.attention_remedy", names, lambda: answers.remedy(rows)),
        find("cs336.attention_prediction", names, lambda: answers.prediction(rows)),
        find("cs336.attention_oom", names, lambda: answers.out_of_memory(tables[TABLES[0]].frame)),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Time of both passes, and memory measured and predicted, over sequence length."""
    table = tables[TABLES[0]]
    times = (
        "Above: median time of a forward (left) and a backward pass (right) over sequence length, one line a d_model; "
        "bars around the median are as long as the interquartile range. Host clock."
    )
    memory = (
        "Below: memory allocated before backward, measured (lines) and predicted (crosses). Counted in one pass: an "
        "allocator's count has no spread."
    )
    draw = f.stacked(lambda canvas: _draw_times(canvas, table), lambda canvas: _draw_memory(canvas, table))
    return [
        f.Figure(FIGURES[0], f"{times} {memory}", draw, (7.0, 6.4), sample="forward_ms"),
    ]


def _draw_times(canvas: Any, table: Table) -> None:
    for axes, (sample, title) in zip(
        canvas.subplots(1, 2, sharex=True), (("forward_ms", "Forward"), ("backward_ms", "Backward")), strict=True
    ):
        _lines_by_width(axes, table.ok, sample, f"{sample}_iqr")
        f.mark_statuses(axes, table.frame, "seq_len")
        axes.set_title(title)
        axes.set_xlabel("Sequence length")
        axes.set_ylabel("Time (ms)")


def _draw_memory(canvas: Any, table: Table) -> None:
    axes, rows = canvas.subplots(), table.ok
    _lines_by_width(axes, rows, "memory_before_backward_gib", "")
    if not rows.empty:
        axes.plot(
            rows["seq_len"].astype(float),
            rows["predicted_before_backward_gib"].astype(float),
            "k+",
            markersize=8,
            zorder=5,
        )
    f.mark_statuses(axes, table.frame, "seq_len")
    axes.set_xlabel("Sequence length")
    axes.set_ylabel("Memory before backward (GiB)")


def _lines_by_width(axes: Any, rows: pd.DataFrame, y: str, spread: str) -> None:
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    by = f.varying(rows, ("head_dim", "dtype", "device", "batch"))
    f.lines(axes, rows, "seq_len", y, by, lambda levels: "d " + " ".join(map(str, levels)), spread)
    f.power_of_two_ticks(axes, sorted(set(rows["seq_len"].astype(float))))
