"""Tables and figure of flash_benchmarking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from perfscribe.analytic.flops import attention_backward_flop, attention_forward_flop
from perfscribe.attention import backends
from perfscribe.experiments.flash_benchmarking.levels import SHOWN
from perfscribe.instruments.precision import DTYPES
from perfscribe.instruments.statistics import ROUNDS_FOR_INTERVAL, Rounds, ratio
from perfscribe.records.records import STATUSES, Record
from perfscribe.show import figures as f
from perfscribe.show import references
from perfscribe.show import tables as t
from perfscribe.show.ceilings import TERA, product_flop_per_s
from perfscribe.show.tables import Column, Table

EXPERIMENT = "flash_benchmarking"
TABLES, FIGURES = SHOWN.tables, SHOWN.figures
PASSES = {"forward": "Forward", "backward": "Backward", "both": "End-to-end"}
APART = ("forward", "backward")
SOURCES = {"cs336-writeup-002": "002", "brandon-snider": "brandon-snider", "yyin-dev": "yyin-dev"}
COMPARED = ("seq_len", "head_dim", "dtype", "batch", "implementation")  # with published figures
JOINED_BY = ("device", "seq_len", "head_dim", "dtype", "batch", "heads", "causal", "samples")
ELSEWHERE = ("compiled", "flex")  # timed on a few problems alone: no columns in tables of all problems
OURS = "ours"
NOT_PLANNED, NO_PEAK = "not planned", "no product measured"
ENTRY_METRIC = "forward_backward_ms"  # of a published entry of the leaderboard
VERDICT_NOTE = (
    "Faster, slower: every sample of the one is below every sample of the other, or with enough rounds the interval of "
    "the ratio of medians excludes one."
)
RATES_NOTE = (
    "FLOP by the convention of the FlashAttention papers, halved as causal, for every implementation. Product: the "
    "highest rate of a square product of that dtype here; Triton multiplies fp32 as three TF32 products."
)
BOARD_NOTE = (
    "Entries are timed by triton.testing.do_bench on one H100, ours by graph replay, and with launches as do_bench "
    "does. Where the staff's figure of an entry differs from the claimed one, it is the staff's."
)
CELLS_NOTE = (
    "On a GPU by replay of CUDA graphs with L2 flushed, with launches by events around plain calls; on a CPU by "
    "the host clock. Published figures are by do_bench, with launches, and triton is each writer's own kernel."
)
CAPTION = (
    "Median time of a forward and a backward pass together over sequence length, one line an implementation; bars are "
    "as long as the interquartile range. Graph replay with L2 flushed on a CUDA device, host clock on a CPU."
)
PROBLEM = [
    *t.factors(seq_len="Sequence length", head_dim="d", dtype="Dtype", batch="Batch", device="Device"),
]


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """All implementations; rates; the leaderboard; every cell beside published figures."""
    grid, board, products = (
        [cell for cell in records[EXPERIMENT] if cell.factors["workload"] == workload]
        for workload in ("grid", "leaderboard", "matmul")
    )
    names = shown_implementations(grid)
    rows = joined([cell for cell in grid if cell.factors["implementation"] in names])
    return [
        t.make(TABLES[0], "Implementations of attention", rows, _by_implementation(names), [VERDICT_NOTE]),
        t.make(TABLES[1], "Rates of attention", rows, _rates(names, measured_peaks(products)), [RATES_NOTE]),
        t.make(TABLES[2], "The leaderboard's problem", leaderboard(board), _leaderboard(), [BOARD_NOTE]),
        t.make(TABLES[3], "Every cell of attention", grid, _cells(), [CELLS_NOTE]),
    ]


# Rows of all implementations


def shown_implementations(cells: Sequence[Record]) -> list[str]:
    """Those that gave figures anywhere, in the order of the table of implementations; all that occur if none did."""
    shown = {cell.factors["implementation"] for cell in cells if cell.ok} - set(ELSEWHERE)
    shown = shown or {cell.factors["implementation"] for cell in cells} - set(ELSEWHERE)
    return [name for name in backends.IMPLEMENTATIONS if name in shown]


def joined(cells: Sequence[Record]) -> list[Record]:
    """One record a problem; its values hold the cells by implementation, under "ours" this project's for the device.

    A row is ok where any of its cells is; what the others ended with is then told by flags, as are the cells' own
    flags, each by the name of its implementation.
    """
    problems: dict[tuple[Any, ...], dict[str, Record]] = {}
    for cell in cells:
        key = tuple(cell.factors[name] for name in JOINED_BY)
        problems.setdefault(key, {})[cell.factors["implementation"]] = cell
    places = list(dict.fromkeys(key[:3] for key in problems))
    ordered = sorted(problems, key=lambda key: (places.index(key[:3]), DTYPES.index(key[3])))
    return [_row(dict(zip(JOINED_BY, key, strict=True)), problems[key]) for key in ordered]


def _row(problem: dict[str, Any], by: dict[str, Record]) -> Record:
    own = backends.ours(problem["device"])
    best = min(by.values(), key=lambda cell: STATUSES.index(cell.status))
    titled = [(backends.named(name).title, cell) for name, cell in by.items()]
    ended = [(title, cell) for title, cell in titled if best.ok and cell.status in ("oom", "timeout", "failed")]
    flags = [f"{title}: {cell.status}, {t.reason(cell)}" for title, cell in ended]
    flags += [f"{title}: {'; '.join(cell.flags)}" for title, cell in titled if cell.ok and cell.flags]
    timed = any(cell.samples for cell in by.values())
    return Record(
        experiment=best.experiment,
        factors={**problem, OURS: backends.named(own).title.removesuffix(f" ({OURS})")},
        status=best.status,
        reason=best.reason,
        origin=best.origin,
        # none where nothing was measured: the row then shows its status throughout
        values={**by, **({OURS: by[own]} if own in by else {})} if timed else {},
        environments=sorted({name for cell in by.values() for name in cell.environments}),
        flags=flags,
        error=best.error,
    )


def of_cell(implementation: str, column: Column) -> Column:
    """A column of single cells made one of joined rows: of one implementation, with its status where it has none."""
    name = f"{implementation}_{column.name}"

    def asked(get: Callable[[Record], Any]) -> Callable[[Record], Any]:
        def figure(row: Record) -> Any:
            cell = row.values.get(implementation)
            if cell is None:
                return NOT_PLANNED
            try:
                return get(cell)
            except KeyError:  # no such sample: the cell ended before it
                return _why_not(cell)

        return figure

    return replace(
        column,
        name=name,
        get=asked(column.get),
        spread=f"{name}_iqr" if column.spread else "",
        spread_get=column.spread_get and asked(column.spread_get),
        rounds_get=column.rounds_get and asked(column.rounds_get),
    )


def _why_not(cell: Record | None) -> str:
    return NOT_PLANNED if cell is None else t.NOT_RECORDED if cell.ok else cell.status


def _by_implementation(names: Sequence[str]) -> list[Column]:
    """Forward and backward of each implementation, and verdicts on ours against SDPA's flash backend."""
    times = [
        of_cell(name, t.median(f"{one}_ms", f"{PASSES[one]}, {backends.named(name).title} (ms)"))
        for one in APART
        for name in names
    ]
    verdicts = []
    for one in APART:
        judge = partial(_verdict, sample=f"{one}_ms")
        verdicts.append(t.derived(f"verdict_{one}", f"Ours against SDPA flash, {one}", judge, exact=True))
    return [*PROBLEM, *times, *verdicts]


def _verdict(row: Record, sample: str) -> str:
    """Whether ours is faster or slower than SDPA's flash backend; where one was not timed, what it ended with."""
    cells = [row.values.get(name) for name in ("sdpa_flash", OURS)]
    rounds = [cell.samples.get(sample, []) if cell is not None else [] for cell in cells]
    return judged(*rounds) if all(rounds) else _why_not(cells[0] if not rounds[0] else cells[1])


def judged(base: Rounds, other: Rounds) -> str:
    """The verdict on `other` against `base` from their rounds of samples."""
    if len(base) == len(other) >= ROUNDS_FOR_INTERVAL:
        return ratio(base, other).verdict
    first, second = (np.concatenate([np.asarray(samples) for samples in rounds]) for rounds in (base, other))
    return "faster" if second.max() < first.min() else "slower" if second.min() > first.max() else "cannot tell"


# Rates


def flop(factors: Mapping[str, Any], one: str) -> float:
    """FLOP of a pass of causal attention: forward, backward or both."""
    size = (factors["batch"], factors["heads"], factors["seq_len"], factors["head_dim"])
    forward = attention_forward_flop(*size, causal=bool(factors["causal"]))
    backward = attention_backward_flop(*size, causal=bool(factors["causal"]))
    return float({"forward": forward, "backward": backward, "both": forward + backward}[one])


def measured_peaks(products: Iterable[Record]) -> dict[tuple[str, str], float]:
    """The highest rate of a measured product by device and dtype, TFLOP/s."""
    found: dict[tuple[str, str], float] = {}
    for record in products:
        if record.ok:
            key = (record.factors["device"], record.factors["dtype"])
            found[key] = max(found.get(key, 0.0), product_flop_per_s(record) / TERA)
    return found


def _rates(names: Sequence[str], peaks: Mapping[tuple[str, str], float]) -> list[Column]:
    """TFLOP/s of both passes of each implementation, and the share of the measured product's rate that ours reach."""

    def peak(row: Record) -> Any:
        return peaks.get((row.factors["device"], row.factors["dtype"]), NO_PEAK)

    def share(row: Record, one: str) -> Any:
        cell = row.values.get(OURS)
        if peak(row) == NO_PEAK:
            return NO_PEAK
        if cell is None or not cell.samples.get(f"{one}_ms"):
            return cell.status if cell else NOT_PLANNED
        return 100 * _tflop_per_s(cell, one) / peak(row)

    return [
        *PROBLEM,
        *(of_cell(name, _rate(one, backends.named(name).title)) for one in APART for name in names),
        t.derived("matmul_tflop_per_s", "Product, measured (TFLOP/s)", peak),
        *(
            t.derived(f"share_{one}_percent", f"Ours, {one}, of the product (%)", partial(share, one=one))
            for one in APART
        ),
    ]


def _rate(one: str, title: str) -> Column:
    get = partial(_tflop_per_s, one=one)
    return t.rate(f"{one}_tflop_per_s", f"{PASSES[one]}, {title} (TFLOP/s)", get, f"{one}_ms")


def _tflop_per_s(record: Record, one: str) -> float:
    """By the median device time."""
    return flop(record.factors, one) / t.summary(record, f"{one}_ms").median * 1e3 / TERA


# The leaderboard


def leaderboard(cells: Iterable[Record]) -> list[Record]:
    """Our cells of the leaderboard's problem, then the published entries by time, as records of origin `published`."""
    found = []
    for cell in cells:
        entry = f"here: {backends.named(cell.factors['implementation']).title}"
        found.append(replace(cell, factors={**cell.factors, "entry": entry}))
    known = [one for one in references.load(EXPERIMENT) if one.metric == ENTRY_METRIC and "entry" in one.factors]
    for one in sorted(known, key=lambda reference: reference.value or 0.0):
        entry = str(one.factors["entry"]).replace("_", " ").title()
        values = {"ms": one.value, "hardware": one.hardware, "remark": one.remark}
        factors = {**one.factors, "entry": entry, "device": "cuda"}
        found.append(Record(EXPERIMENT, factors, "ok", "", "published", values=values))
    return found


def _leaderboard() -> list[Column]:
    shape = {"batch": "Batch", "heads": "Heads", "seq_len": "Sequence length", "head_dim": "d", "dtype": "Dtype"}

    def told(entry: Callable[[Record], Any], ours: Callable[[Record], Any]) -> Callable[[Record], Any]:
        return lambda record: (entry if record.origin == "published" else ours)(record)

    def none(_: Record) -> str:
        return "none"

    def claimed(record: Record) -> float:
        return float(record.values["ms"])

    time_ms = told(claimed, t.median("both_ms", "").get)
    here, measured = (t.if_timed(lambda _, word=word: word) for word in ("this site", "measured here"))  # type: ignore[misc]
    timer = t.if_timed(lambda record: record.timers["both_ms"])
    return [
        t.factor("entry", "Entry"),
        *(t.factor(name, title) for name, title in (shape | {"causal": "Causal"}).items()),
        t.derived("both_ms", "Forward and backward (ms)", time_ms, spread="both_ms_iqr"),
        t.derived("both_ms_iqr", "IQR (ms)", told(none, t.iqr("both_ms").get)),
        t.derived("n", "n", told(none, t.count("both_ms").get), exact=True),
        t.derived("both_launched_ms", "With launches (ms)", told(claimed, _launched("both", "").get)),
        t.derived("tflop_per_s", "Rate (TFLOP/s)", lambda r: flop(r.factors, "both") / time_ms(r) * 1e3 / TERA),
        t.derived("hardware", "Hardware", told(lambda r: r.values["hardware"], here), exact=True),
        t.derived("standing", "Standing", told(lambda r: r.values["remark"], measured), exact=True),
        t.derived("timer", "Timer", told(lambda _: "do_bench, by its source", timer), exact=True),
    ]


# Every cell


def _cells() -> list[Column]:
    """All that a cell gave."""
    columns = [*PROBLEM, t.factor("implementation", "Implementation")]
    for one, word in PASSES.items():
        columns += [t.median(f"{one}_ms", f"{word} (ms)"), t.iqr(f"{one}_ms", "IQR (ms)")]
    return [
        *columns,
        t.count("both_ms"),
        *(_launched(one, f"{word} with launches (ms)") for one, word in PASSES.items()),
        t.derived("first_call_s", "First calls beyond the second (s)", t.if_timed(lambda r: r.spent["compile_s"])),
        t.derived("sdpa_backend", "Backend that SDPA took", t.if_timed(_sdpa_backend), exact=True),
        t.value("largest_relative_error", "Largest error against float64"),
        t.timer("both_ms"),
        _unshown("kernels", "Kernels with most time", "not looked at"),
        _unshown("calls_per_sample", "Calls a sample: forward, backward, both", "1 1 1"),
        _unshown("no_graph", "Why not by graph replay", "none"),
        *_published(),
    ]


def _published() -> list[Column]:
    """What was published of each pass; found by a dictionary, as there are many cells and many figures."""
    known = {
        (one.metric, one.source, *(one.factors.get(name) for name in COMPARED)): one.shown
        for one in references.load(EXPERIMENT)
    }

    def lookup(record: Record, metric: str, source: str) -> Any:
        return known.get((metric, source, *(record.factors[name] for name in COMPARED)), "none")

    return [
        t.quoted(f"{metric}_{source}", f"{word}, {name} (ms)", get)
        for metric, word in zip(("forward_ms", "backward_ms", ENTRY_METRIC), PASSES.values(), strict=True)
        for source, name in SOURCES.items()
        for get in [partial(lookup, metric=metric, source=source)]
    ]


def _unshown(name: str, title: str, otherwise: str) -> Column:
    """A text of the record that stands in the CSV alone."""
    get = t.if_timed(lambda record: record.values.get(name, otherwise))
    return Column(name, title, get, kind="unshown", exact=True)


def _sdpa_backend(record: Record) -> str:
    is_sdpa = backends.named(record.factors["implementation"]).sdpa
    return str(record.values.get("sdpa_backend", t.NOT_RECORDED)) if is_sdpa else "not SDPA"


def _launched(one: str, title: str) -> Column:
    """Median of a pass by plain events, launches included; the host clock of a CPU holds them anyway."""
    plain = t.median(f"{one}_launched_ms", title)

    def told(get: Any) -> Callable[[Record], Any]:
        return t.if_timed(lambda record: get(record) if record.factors["device"] == "cuda" else "in the host clock")

    return replace(plain, get=told(plain.get), spread_get=told(plain.spread_get), rounds_get=None)


# The figure

DRAWN_DTYPES = ("bf16", "fp32")
WIDTH = 64  # head dimension; where it was not measured, the largest
MOST_TICKS = 6
# One style an implementation in every panel; "tiled" and "triton" are ours on a CPU and on a GPU.
STYLES = {"eager": 0, "tiled": 1, "triton": 1, "sdpa_flash": 2, "sdpa_cudnn": 3, "triton_ieee": 4, "sdpa_efficient": 5}
STYLES |= {"sdpa_math": 6}


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Time over length."""
    draw = partial(_draw, cells=tables[TABLES[3]].frame)
    return [f.Figure(FIGURES[0], CAPTION, draw, (8.0, 4.0), sample="both_ms")]


def _draw(canvas: Any, cells: pd.DataFrame) -> None:
    """Forward and backward together over length, a line an implementation, a panel a dtype."""
    cells = cells[~cells["implementation"].isin(ELSEWHERE)]
    ok = cells[cells["status"] == "ok"]
    if ok.empty:
        f.no_data(canvas.subplots(), "no cell was measured")
        return
    device = "cuda" if "cuda" in set(ok["device"]) else ok["device"].iloc[0]
    ok = ok[ok["device"] == device]
    width = WIDTH if WIDTH in set(ok["head_dim"]) else max(ok["head_dim"])
    ok, cells = ok[ok["head_dim"] == width], cells[(cells["device"] == device) & (cells["head_dim"] == width)]
    dtypes = [dtype for dtype in DRAWN_DTYPES if dtype in set(ok["dtype"])] or [ok["dtype"].iloc[0]]
    named: dict[str, Any] = {}
    panels = canvas.subplots(1, len(dtypes), sharey=True, squeeze=False)[0]
    for axes, dtype in zip(panels, dtypes, strict=True):
        _panel(axes, ok[ok["dtype"] == dtype], named)
        f.mark_statuses(axes, cells[cells["dtype"] == dtype], "seq_len")
        axes.set_title(f"d = {width}, {dtype} on {device}")
        axes.set_xlabel("Sequence length")
    panels[0].set_ylabel("Forward and backward (ms)")
    shown = [name for name in STYLES if name in named]
    titles = [backends.named(name).title for name in shown]
    canvas.legend([named[name] for name in shown], titles, loc="outside upper center", ncols=3, fontsize=8)


def _panel(axes: Any, rows: pd.DataFrame, named: dict[str, Any]) -> None:
    """The lines of one dtype; keeps one of each implementation for the legend."""
    for name, group in rows.groupby("implementation", sort=False):
        group = group.sort_values("seq_len", kind="stable")
        bars = pd.to_numeric(group["both_ms_iqr"], errors="coerce") / 2
        style = {"color": f.COLOURS[STYLES[name]], "marker": f.MARKERS[STYLES[name]], "markersize": 4, "capsize": 2}
        xs, ys = group["seq_len"].astype(float), group["both_ms"].astype(float)
        named[name] = axes.errorbar(xs, ys, yerr=bars, linewidth=1.2, **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    levels = sorted({float(length) for length in rows["seq_len"]})
    f.power_of_two_ticks(axes, levels if len(levels) <= MOST_TICKS else levels[::-2][::-1])
