"""Tables, figures and answers of all_reduce."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import pandas as pd

from perfscribe import ceilings, references
from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.all_reduce import answers, claims, columns, drawings, fits
from perfscribe.findings import Finding, find
from perfscribe.measured_by import communication_variables
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = (
    "cs336.all_reduce",
    "cs336.all_reduce_ranks",
    "cs336.collectives",
    "cs336.collectives_fit",
    "cs336.all_reduce_transports",
    "cs336.all_reduce_published",
)
FIGURES = (
    "cs336.all_reduce_by_size",
    "cs336.all_reduce_by_backend",
    "cs336.collectives_by_size",
    "cs336.all_reduce_transports",
)
READS = ("calibration",)  # for the links
NAME = "all_reduce"
SWEPT_TITLE = "Collectives from small to large messages"
BESIDE = ("cs336-writeup-002", "brandon-snider", "yyin-dev", "damek")
RULES = (
    "Time: of each call the longest that any rank took, then the median over calls. algbw = bytes / time, busbw = "
    "algbw x 2(n - 1)/n for an all-reduce among n, (n - 1)/n for gathers, scatters and all-to-all, 1 for a broadcast; "
    "bytes are those of the whole array (nccl-tests, doc/PERFORMANCE.md); a GB of a rate is 10^9 bytes. Processes of "
    "gloo share the host's cores: where there are more processes than cores, they also wait for these. Host clock: "
    "of NCCL other calls than those timed by CUDA events, so that of times that vary either may be the longer."
)
NCCL_RULE = (
    "NCCL: its version; algorithm, protocol, channels and connections as its own log names them (P2P: between the "
    "GPUs' memories; SHM: by way of the host's; NET/Socket: TCP). GPU links: what joins the GPUs by the driver (NV and "
    "a number: so many NVLinks), whether the transport uses it or not."
)
FITTED_RULE = (
    "Fitted: by the line of latency and bandwidth through all sizes of the row's operation, processes and transport; "
    "residual: measured / fitted - 1."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The homework's grid; its ranks; every operation over sizes; the lines through them; transports; published."""
    every = fits.once(records[NAME])
    known, lines = references.load(NAME), fits.lines(every)
    nccl = columns.nccl(every)
    notes = [*_megabyte(every), RULES, *([NCCL_RULE] if nccl else []), *_told(every)]
    grid = [r for r in every if r.factors["grid"] == "sizes"]
    chosen = [r for r in every if r.factors["transport"] == "default"]
    swept = _swept(chosen)
    ways = [r for r in every if r.factors["operation"] == NAME and (r.factors["grid"] != "sweep")]
    same = [*columns.place(), *columns.times(), *columns.host_clock()]
    fitted = columns.fitted(lines)
    of_links = ceilings.of_links(records, swept, columns.busbw)
    with_lines = [*notes, FITTED_RULE]
    swept_notes = [*with_lines, ceilings.LINK_NOTE] if of_links else with_lines
    link = ceilings.slowest_link(records)
    sizes = [*same[1:], *nccl, *fitted, *columns.published_ms(known, BESIDE), link]
    return [
        t.make(TABLES[0], "All-reduce of fp32, by backend, processes and size", grid, sizes, with_lines),
        _ranks(grid, known),
        t.make(TABLES[2], SWEPT_TITLE, swept, [*same, *of_links, *nccl, *fitted], swept_notes),
        _fits(chosen + [r for r in every if r.factors["grid"] == "transports"]),
        t.make(TABLES[4], "All-reduce over each transport", _by_way(ways), [*same[1:], *nccl], notes),
        _published([r for r in chosen if r.factors["operation"] == NAME], known),
    ]


def _megabyte(records: Iterable[Record]) -> list[str]:
    meanings = sorted({str(record.factors["megabyte"]) for record in records})
    return [
        f"An MB is {' or '.join(meanings)} bytes here (config key experiments.{NAME}.megabyte); KB and GB follow it."
    ]


def _told(records: Iterable[Record]) -> list[str]:
    """What the processes' variables told NCCL, beside its own choices; nothing where none was set."""
    told = communication_variables(record for record in records if record.factors["backend"] == "nccl")
    return (
        [f"NCCL was told {'; or '.join(one or 'nothing' for one in told)}: it chose within that."] if any(told) else []
    )


def _swept(chosen: list[Record]) -> list[Record]:
    """The sweep, and the homework's cells of the same ways, by size."""
    swept = {fits.key_of(record) for record in chosen if record.factors["grid"] == "sweep"}
    found = fits.groups(record for record in chosen if fits.key_of(record) in swept)
    return fits.lacking_last(
        one for group in found.values() for one in sorted(group, key=lambda r: r.factors["size_mb"])
    )


def _by_way(records: list[Record]) -> list[Record]:
    found = fits.groups(records)
    return fits.lacking_last(record for group in found.values() for record in group)


def _ranks(grid: list[Record], known: list[references.Reference]) -> Table:
    shown = [
        t.factor("backend", "Backend"),
        t.factor("world_size", "Processes"),
        *columns.place()[5:],
        t.factor("rank", "Rank"),
        t.median("rank_ms", "Time (ms)"),
        t.iqr("rank_ms", "IQR (ms)"),
        t.count("rank_ms", "Calls"),
        t.timer("rank_ms"),
        columns.published_rank(known),
    ]
    note = "Each rank's own time of the same calls. Published ones are means, in which MB is not defined."
    return t.make(TABLES[1], "All-reduce on each rank", columns.by_rank(grid), shown, [*_megabyte(grid), note])


def _fits(records: list[Record]) -> Table:
    shown = [
        *columns.place()[:5],
        t.value("latency_us", "Latency (µs)"),
        t.value("bandwidth_gb_per_s", "Bandwidth (GB/s)"),
        t.value("bus_gb_per_s", "As busbw (GB/s)"),
        t.value("half_bandwidth_bytes", "Size of half the bandwidth (MiB)", scale=2**-20, column="half_bandwidth_mib"),
        t.value("half_reached_bytes", "Half of the best reached from (MiB)", scale=2**-20, column="half_reached_mib"),
        t.value("points", "Sizes", exact=True),
        t.value("worst_residual_percent", "Largest residual (%)"),
    ]
    note = (
        "time = latency + bytes / bandwidth, by least squares of relative errors. At latency x bandwidth bytes half of "
        "the bandwidth is reached, where the line describes all sizes. Half of the best: the least measured size from "
        "which on all reach half of the highest measured bandwidth. Residual: measured / fitted - 1."
    )
    return t.make(TABLES[3], "Latency and bandwidth", fits.rows(records), shown, [note])


def _published(records: list[Record], known: list[references.Reference]) -> Table:
    rates = columns.published_busbw(known)
    kept = [r for r in records if r.factors["grid"] == "sizes" or any(one.get(r) != "none" for one in rates)]
    shown = [one for one in rates if any(one.get(record) != "none" for record in kept)]
    note = (
        f"Published times as bus bandwidths, of sizes that are the same to within {columns.SAME_SIZE:.0%}. "
        f"{_of_sources([name for name in columns.SOURCES if f'busbw_{name}' in {one.name for one in shown}])}"
    )
    return t.make(TABLES[5], "Bus bandwidth beside published figures", kept, _bare() + shown, [note])


def _of_sources(shown: list[str]) -> str:
    """What is to be known of the sources that have a column."""
    if not shown:
        return "None is of these cells."
    mib = [columns.SOURCES[name] for name in shown if name in columns.MIB_SOURCES]
    others = [columns.SOURCES[name] for name in shown if name not in columns.MIB_SOURCES]
    meant = [f"MB is 2^20 bytes in {', '.join(mib)}."] if mib else []
    meant += [f"Without a definition of MB, which is taken for what it is here: {', '.join(others)}."] if others else []
    hardware = "; ".join(f"{columns.SOURCES[name]} {columns.HARDWARE[name]}" for name in shown)
    return f"{' '.join(meant)} Hardware: {hardware}."


def _bare() -> list[t.Column]:
    chosen = {"backend", "world_size", "message", "size_bytes", "busbw_gb_per_s"}
    return [one for one in (*columns.place(), *columns.times()) if one.name in chosen]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """The four claims of a published write-up, then what else was measured."""
    grid, swept, fitted, ways, published = (tables[TABLES[n]].ok for n in (0, 2, 3, 4, 5))
    known = claims.published(references.load(NAME))
    smallest = pd.concat([grid, swept[swept["operation"] == NAME]]).drop_duplicates(
        ["backend", "world_size", "message"]
    )
    return [
        find("cs336.all_reduce_backends", TABLES[:1], lambda: claims.backends(grid, known)),
        find("cs336.all_reduce_sizes", TABLES[:1], lambda: claims.sizes(grid, known)),
        find("cs336.all_reduce_processes", TABLES[:1], lambda: claims.processes(grid, known)),
        find("cs336.all_reduce_overhead", (TABLES[0], TABLES[2]), lambda: claims.overhead(smallest, known)),
        find("cs336.collectives_fit", TABLES[3:4], lambda: answers.lines(fitted)),
        find("cs336.collectives_bandwidth", TABLES[2:3], lambda: answers.operations(swept)),
        find("cs336.all_reduce_transports", TABLES[4:5], lambda: answers.transports(ways)),
        find("cs336.all_reduce_published", TABLES[5:], lambda: answers.published(published)),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """The homework's three plots; bandwidth of the operations; residuals of the lines; transports."""
    grid, swept, ways = (tables[TABLES[n]].frame for n in (0, 2, 4))
    time = "Median of the longest time of any rank, bars as long as the interquartile range; gloo by the host clock, "
    time += "NCCL by CUDA events."
    bus = "Bus bandwidth of the median time; gloo by the host clock, NCCL by CUDA events."
    over = f.stacked(partial(drawings.by_size, rows=grid), partial(drawings.by_processes, rows=grid), heights=(4, 3))
    swept_over = f.stacked(partial(drawings.bandwidth, rows=swept), partial(drawings.residuals, rows=swept))
    by = "All-reduce by backend, size and processes, all by the host clock: median of the longest time of any rank."
    fitted = (
        f"Each operation over size. Above: its bandwidth. {bus} Below: measured over fitted time, minus one, where the "
        "fit is latency plus bytes over bandwidth."
    )
    low, high, n = (7.0, 4.6), (7.0, 8.0), "time_ms"
    return [
        f.Figure(FIGURES[0], f"All-reduce over size (above) and processes (below), by backend. {time}", over, high, n),
        f.Figure(FIGURES[1], by, partial(drawings.by_backend, rows=grid), low, n),
        f.Figure(FIGURES[2], fitted, swept_over, high, n),
        f.Figure(FIGURES[3], f"All-reduce over each transport. {bus}", partial(drawings.transports, rows=ways), low, n),
    ]
