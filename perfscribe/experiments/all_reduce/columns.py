"""The columns of all_reduce's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from perfscribe import tables as t
from perfscribe.counters.traffic import MB_MEANINGS, busbw_gb_per_s, size_bytes
from perfscribe.experiments.all_reduce.fits import Line, line_of
from perfscribe.parallel.transport import TRANSPORTS
from perfscribe.records import Record
from perfscribe.references import Reference
from perfscribe.statistics import format_figure
from perfscribe.tables import Column

OPERATIONS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "broadcast": "broadcast",
    "all_to_all": "all-to-all",
}
SOURCES = {
    "cs336-writeup-002": "write-up 002",
    "brandon-snider": "brandon-snider",
    "christine8888": "christine8888",
    "damek": "damek",
    "kesavanramakrishnan": "kesavanramakrishnan",
    "yyin-dev": "yyin-dev",
    "stas00-ml-engineering": "stas00",
}
HARDWARE = {
    "cs336-writeup-002": "no NVLink",
    "brandon-snider": "H100",
    "christine8888": "H100",
    "damek": "no NVLink",
    "kesavanramakrishnan": "B200 (not stated)",
    "yyin-dev": "a CPU",
    "stas00-ml-engineering": "H200 without NVLS",
}
MIB_SOURCES = ("brandon-snider", "christine8888", "stas00-ml-engineering")  # that say or show what their MB is
SAME_SIZE = 0.05  # relative: 1000 and 1024 MB are one size where bandwidths are compared
NO_NCCL = "none: gloo"
TOO_FEW = "too few sizes"


def message(record: Record) -> str:
    """A size as people write it: 1 KB, 64 KB, 10 MB, 1 GB."""
    size_mb, step = record.factors["size_mb"], 1024 if record.factors["megabyte"] == "2^20" else 1000
    if size_mb < 1 and size_mb * step == round(size_mb * step):
        return f"{round(size_mb * step)} KB"
    return f"{size_mb // step} GB" if size_mb >= step and size_mb % step == 0 else f"{size_mb:g} MB"


def way(record: Record) -> str:
    """How messages go: gloo knows TCP alone, NCCL's own choice is named by what its log says."""
    if record.factors["backend"] == "gloo":
        return TRANSPORTS["tcp"][0]
    asked = record.factors["transport"]
    if asked != "default":
        return TRANSPORTS[asked][0]
    return f"NCCL's choice ({record.values.get('connections', t.NOT_RECORDED)})" if record.ok else "NCCL's choice"


def place() -> list[Column]:
    """What the row is about."""
    return [
        t.factor("operation", "Operation"),
        t.factor("backend", "Backend"),
        t.factor("device", "Device"),
        Column("transport", "Transport", way, kind="factor", exact=True),
        t.factor("world_size", "Processes"),
        Column("message", "Message", message, kind="factor", exact=True),
        Column("size_bytes", "Message (B)", bytes_of, kind="factor", exact=True),
    ]


def bytes_of(record: Record) -> int:
    """Bytes asked for: what is sent is cut to what divides evenly among ranks."""
    return size_bytes(record.factors["size_mb"], record.factors["megabyte"])


def times() -> list[Column]:
    """The time of a call and its rates."""
    return [
        t.median("time_ms", "Time (ms)"),
        t.iqr("time_ms", "IQR (ms)"),
        t.count("time_ms", "Calls"),
        t.timer("time_ms"),
        t.rate("algbw_gb_per_s", "algbw (GB/s)", lambda r: _rate(r, bus=False), "time_ms"),
        t.rate("busbw_gb_per_s", "busbw (GB/s)", busbw, "time_ms"),
    ]


def host_clock() -> list[Column]:
    """Calls by the host clock, which compares backends, as NCCL's usual timer leaves launching out: others, with it."""
    sample = "host_ms"

    def median(record: Record) -> float:
        return t.summary(record, sample if sample in record.samples else "time_ms").median

    def spread(record: Record) -> float | str:
        found = t.summary(record, sample if sample in record.samples else "time_ms")
        return t.ONE_SAMPLE if found.n == 1 else found.iqr

    return [Column("host_ms", "Host clock (ms)", median, spread="host_ms_iqr", spread_get=spread)]


def busbw(record: Record) -> float:
    """What each link carries, in GB/s."""
    return _rate(record, bus=True)


def _rate(record: Record, bus: bool) -> float:
    """Of the median over all rounds; operation's factor as all_reduce.measure uses it."""
    time_ms = t.summary(record, "time_ms").median
    sent = int(record.values["message_bytes"])
    if bus:
        return busbw_gb_per_s(record.factors["operation"], record.factors["world_size"], sent, time_ms)
    return sent / (time_ms * 1e-3) / 1e9


def nccl(records: Iterable[Record]) -> list[Column]:
    """What NCCL said of itself; nothing where it was never asked."""
    if not any(record.ok and record.factors["backend"] == "nccl" for record in records):
        return []
    titles = {
        "nccl_version": "NCCL",
        "algorithm": "Algorithm",
        "protocol": "Protocol",
        "channels": "Channels",
        "connections": "Connections",
        "links": "GPU links",
    }

    def column(name: str, title: str) -> Column:
        return t.derived(
            name,
            title,
            lambda r: NO_NCCL if r.factors["backend"] == "gloo" else r.values.get(name, t.NOT_RECORDED),
            exact=True,
        )

    return [column(name, title) for name, title in titles.items()]


def fitted(lines: Mapping[tuple[Any, ...], Line]) -> list[Column]:
    """The time by latency and bandwidth of the row's line, and how far the measured one is from it."""

    def residual(record: Record) -> float | str:
        measured, by_line = t.summary(record, "time_ms").median, time_ms(record)
        return by_line if isinstance(by_line, str) else 100 * (measured / by_line - 1)

    def time_ms(record: Record) -> float | str:
        sent, line = record.values["message_bytes"], line_of(record, lines)
        return TOO_FEW if line is None else line.time_ms(sent)

    return [t.derived("fitted_ms", "Fitted (ms)", time_ms), t.derived("residual_percent", "Residual (%)", residual)]


def published_ms(known: Iterable[Reference], sources: Iterable[str]) -> list[Column]:
    """Published times of the same processes and MB, the longest of its ranks where a source tells ranks apart."""
    known = [ref for ref in known if ref.metric == "time_ms" and ref.value is not None]

    def column(source: str) -> Column:
        def get(record: Record) -> Any:
            same = [ref.value for ref in known if ref.source == source and _same_cell(ref, record, 1e-9)]
            return max(value for value in same if value is not None) if same else "none"

        return Column(f"published_{source}", f"{SOURCES[source]} (ms)", get, kind="published", exact=True)

    return [column(source) for source in sources]


def published_busbw(known: Iterable[Reference]) -> list[Column]:
    """Bus bandwidths that published times give, for sizes that are the same to within SAME_SIZE."""
    known = list(known)
    return [_busbw_column(source, [ref for ref in known if ref.source == source]) for source in SOURCES]


def _busbw_column(source: str, known: list[Reference]) -> Column:
    def get(record: Record) -> Any:
        same = [rate for ref in known if _same_cell(ref, record, SAME_SIZE) and (rate := _published_rate(ref, record))]
        return float(format_figure(min(same))) if same else "none"

    return Column(f"busbw_{source}", f"{SOURCES[source]} (GB/s)", get, kind="published", exact=True)


def _published_rate(ref: Reference, record: Record) -> float | None:
    if ref.metric == "busbw_gb_per_s":
        return ref.value
    if ref.metric != "time_ms" or ref.value is None:
        return None
    megabyte = 2**20 if ref.source in MIB_SOURCES else MB_MEANINGS[record.factors["megabyte"]]
    sent = round(float(ref.factors["size_mb"]) * megabyte)
    return busbw_gb_per_s("all_reduce", record.factors["world_size"], sent, ref.value)


def _same_cell(ref: Reference, record: Record, tolerance: float) -> bool:
    """Whether a figure is of the record's backend, processes and size, and of no other collective or NVLS."""
    size = ref.factors.get("size_mb")
    if size is None or ref.factors.get("collective") or ref.factors.get("nvls") is True:
        return False
    same = all(ref.factors.get(name) == record.factors[name] for name in ("backend", "world_size"))
    return same and abs(float(size) / record.factors["size_mb"] - 1) <= tolerance


def by_rank(records: Iterable[Record]) -> list[Record]:
    """A row for each rank of each cell, with its own times as samples."""
    rows = []
    for record in records:
        for rank in range(int(record.factors["world_size"])):
            samples = {"rank_ms": [record.series[f"rank_{rank}_ms"]]} if f"rank_{rank}_ms" in record.series else {}
            timers = {"rank_ms": record.timers.get("time_ms", t.NOT_RECORDED)}
            factors = record.factors | {"rank": rank}
            rows.append(replace(record, factors=factors, samples=samples, timers=timers))
    return rows


def published_rank(known: Iterable[Reference]) -> Column:
    """Write-up 002's time of the same rank."""
    known = [ref for ref in known if ref.source == "cs336-writeup-002"]

    def get(record: Record) -> Any:
        same = [ref for ref in known if _same_cell(ref, record, 1e-9) and ref.factors["rank"] == record.factors["rank"]]
        return same[0].shown if same else "none"

    return Column("published_rank_ms", "write-up 002 (ms)", get, kind="published", exact=True)
