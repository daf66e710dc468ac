"""Tables and figure of all_reduce."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from perfscribe.analytic.traffic import busbw_gb_per_s, size_bytes
from perfscribe.distributed.transport import TRANSPORTS
from perfscribe.experiments.cs336.all_reduce.levels import SHOWN
from perfscribe.instruments.statistics import Summary
from perfscribe.records.records import Record
from perfscribe.show import ceilings, references
from perfscribe.show import figures as f
from perfscribe.show import tables as t

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
NAME = "all_reduce"
NO_NCCL = "none: gloo"
MOST_TICKS = 5
SOURCES = (references.OF_002, "brandon-snider", "yyin-dev", "damek", "kesavanramakrishnan")
NCCL = {"algorithm": "Algorithm", "protocol": "Protocol", "links": "GPU links"}
RULES = (
    "Time: slowest rank per call, median over calls; rates as in nccl-tests (PERFORMANCE.md). "
    "NCCL's algorithm and protocol are those that its log names."
)
# Factors that all sizes of one way to communicate share.
WAY = ("operation", "backend", "device", "transport", "world_size", "megabyte")


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the homework's grid, and every operation and forced transport over sizes."""
    cells = _once(records[NAME])
    grid = t.having(cells, grid="sizes")
    nccl = _nccl(cells)
    timed = [*PLACE[1:], *TIMES, *nccl, *map(_published_ms, SOURCES), ceilings.slowest_link(records)]
    timed_over_sizes = [*PLACE, *TIMES, *nccl]
    return [
        t.make(TABLES[0], "All-reduce of fp32, by backend, processes and size", grid, timed, [RULES]),
        t.make(TABLES[1], "Collectives from small to large messages", _swept(cells), timed_over_sizes, [RULES]),
    ]


def _once(records: Iterable[Record]) -> list[Record]:
    """Return the records without skipped cells whose message the preset measures with other limits."""
    cells = list(records)
    planned = {record.levels(*WAY, "size_mb") for record in cells if record.status != "skipped"}
    return [r for r in cells if r.status != "skipped" or r.levels(*WAY, "size_mb") not in planned]


def _swept(cells: Iterable[Record]) -> list[Record]:
    """Return the sweep, forced transports and the homework's cells of the same ways by size; without times last."""
    groups = t.grouped(cells, lambda record: record.levels(*WAY)).values()
    swept = [group for group in groups if any(record.factors["grid"] != "sizes" for record in group)]
    rows = [record for group in swept for record in sorted(group, key=lambda r: r.factors["size_mb"])]
    return sorted(rows, key=lambda r: ("", "") if r.samples else (r.status, r.reason))


def message(record: Record) -> str:
    """Return a size as text: 1 KB, 64 KB, 10 MB, 1 GB."""
    size_mb, step = record.factors["size_mb"], 1024 if record.factors["megabyte"] == "2^20" else 1000
    if size_mb < 1 and size_mb * step == round(size_mb * step):
        return f"{round(size_mb * step)} KB"
    return f"{size_mb // step} GB" if size_mb >= step and size_mb % step == 0 else f"{size_mb:g} MB"


def _way(record: Record) -> str:
    """Return the transport's name: gloo uses only TCP, NCCL's choice is named after its log."""
    transport = "tcp" if record.factors["backend"] == "gloo" else record.factors["transport"]
    if transport != "default":
        return TRANSPORTS[transport][0]
    return f"NCCL's choice ({record.values.get('connections', t.NOT_RECORDED)})" if record.ok else "NCCL's choice"


def _on_host(record: Record) -> Summary:
    """Return times by the host clock, the only one that compares backends."""
    return t.summary(record, "host_ms" if "host_ms" in record.samples else "time_ms")


def _host_iqr(record: Record) -> float | str:
    return t.ONE_SAMPLE if _on_host(record).n == 1 else _on_host(record).iqr


def busbw(record: Record) -> float:
    """Return the bus bandwidth in GB/s."""
    sent = int(record.values["message_bytes"]), t.summary(record, "time_ms").median
    return busbw_gb_per_s(record.factors["operation"], record.factors["world_size"], *sent)


PLACE = [
    *t.factors(operation="Operation", backend="Backend", device="Device"),
    t.factor("transport", "Transport", _way),
    t.factor("world_size", "Processes"),
    t.factor("message", "Message", message),
    # The size requested; the message sent is cut to divide evenly among ranks.
    t.factor("size_bytes", "Message (B)", lambda r: size_bytes(r.factors["size_mb"], r.factors["megabyte"])),
]
TIMES = [
    *t.timed("time_ms", "Time (ms)", "Calls"),
    t.timer("time_ms"),
    t.rate("busbw_gb_per_s", "busbw (GB/s)", busbw, "time_ms"),
    t.Column("host_ms", "Host clock (ms)", lambda r: _on_host(r).median, spread="host_ms_iqr", spread_get=_host_iqr),
]


def _nccl(records: Iterable[Record]) -> list[t.Column]:
    """Return columns of NCCL's logged choices; none if NCCL was not measured."""
    if not any(record.ok and record.has(backend="nccl") for record in records):
        return []
    return t.only(lambda record: record.has(backend="nccl"), NO_NCCL, *t.exact(**NCCL))


def _published_ms(source: str) -> t.Column:
    """Return a column of published times of the same processes and MB, the longest if a source lists ranks."""

    def get(record: Record) -> Any:
        levels = {name: record.factors[name] for name in ("backend", "world_size", "size_mb")}
        entries = references.find(NAME, "time_ms", source, **levels)
        return max((entry.value for entry in entries if entry.value), default="none")

    return t.quoted(f"published_{source}", f"{references.short(source)} (ms)", get)


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of time over size."""
    caption = (
        "All-reduce of fp32 over size, one panel per backend. Median of the slowest rank's time; bars: ± half the "
        "interquartile range. Host clock with synchronise."
    )
    draw = f.of(tables[TABLES[0]].frame, _by_size)
    return [f.Figure(FIGURES[0], caption, draw, (7.0, 3.6), "host_ms")]


def _by_size(canvas: Any, rows: pd.DataFrame) -> None:
    """Draw a line per number of processes, a panel per measured backend."""
    ok = rows[rows["status"] == "ok"].astype({"host_ms": float})
    backends = list(dict.fromkeys(ok["backend"]))
    panels = canvas.subplots(1, len(backends), squeeze=False, sharey=True)[0]
    for axes, backend in zip(panels, backends, strict=True):
        of_backend = ok[ok["backend"] == backend]
        f.lines(axes, of_backend, "size_bytes", "host_ms", "world_size", "{} processes".format, "host_ms_iqr")
        _name_sizes(axes, of_backend)
        f.mark_statuses(axes, rows[rows["backend"] == backend], "size_bytes")
        axes.set_title({"gloo": "Gloo, CPUs", "nccl": "NCCL, GPUs"}[backend])
    panels[0].set_ylabel("All-reduce (ms)")


def _name_sizes(axes: Any, rows: pd.DataFrame) -> None:
    """Label messages on the x axis, largest first, skipping labels too close together."""
    named = dict(sorted(zip(rows["size_bytes"].astype(float), rows["message"], strict=True)))
    apart = (max(named) / min(named)) ** (1 / MOST_TICKS)
    chosen: list[float] = []
    for size in sorted(named, reverse=True):
        if not chosen or chosen[-1] / size >= apart:
            chosen.append(size)
    axes.set_xticks(chosen, [named[size] for size in chosen], fontsize=f.LABEL_POINTS)
    axes.minorticks_off()
    axes.set_xlabel("Message")
