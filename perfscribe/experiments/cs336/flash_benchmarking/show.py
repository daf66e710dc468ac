"""Tables and figure of flash_benchmarking."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import pandas as pd

from perfscribe.analytic.flops import attention_backward_flop, attention_forward_flop
from perfscribe.attention import backends
from perfscribe.experiments.cs336.flash_benchmarking import closure
from perfscribe.experiments.cs336.flash_benchmarking.levels import SHOWN
from perfscribe.instruments.graph_timing import IN_TURNS
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import references
from perfscribe.show import tables as t
from perfscribe.show.ceilings import TERA

EXPERIMENT = "flash_benchmarking"
TABLES, FIGURES = SHOWN.tables, SHOWN.figures
PASSES = {"forward": "Forward", "backward": "Backward", "both": "End-to-end"}
ELSEWHERE = ("compiled", "flex")  # timed on only a few problems: not drawn
ENTRY_METRIC = "forward_backward_ms"  # of a published entry of the leaderboard
BOARD_NOTE = (
    "The handout's closure: attention, compiled if one's own, the sum of its output, backward, by do_bench for "
    "10 s. Entries are timed so on one H100; the first column is by graph replay. Where the staff's figure of an entry "
    "differs from the claimed one, it is the staff's."
)
CELLS_NOTE = (
    "On a GPU by replay of CUDA graphs with L2 flushed, in the first round; with launches by events around plain "
    "calls, in every round; on a CPU by the host clock. Published figures are by do_bench, with launches, and triton "
    "is each writer's own kernel. FLOP by the convention of the FlashAttention papers, halved as causal, for every "
    "implementation."
)
CAPTION = (
    "Median time of forward and backward together over sequence length, one line per implementation; bars: ± half "
    "the interquartile range, or half the range of turns. With launches: CUDA events around plain "
    "calls, on a CPU the host clock."
)
PROBLEM = t.factors(seq_len="Sequence length", head_dim="d", dtype="Dtype", batch="Batch", device="Device")


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the leaderboard, and every cell with published times."""
    grid, board = (t.having(records[EXPERIMENT], workload=workload) for workload in ("grid", "leaderboard"))
    return [
        t.make(TABLES[0], "The leaderboard's problem", leaderboard(board), BOARD, [BOARD_NOTE]),
        t.make(TABLES[1], "Every cell of attention", grid, CELLS, [CELLS_NOTE]),
    ]


# Rates


def flop(factors: Mapping[str, Any], one: str) -> float:
    """Return the FLOP of a pass of causal attention: forward, backward or both."""
    size = (factors["batch"], factors["heads"], factors["seq_len"], factors["head_dim"])
    forward = attention_forward_flop(*size, causal=bool(factors["causal"]))
    backward = attention_backward_flop(*size, causal=bool(factors["causal"]))
    return float({"forward": forward, "backward": backward, "both": forward + backward}[one])


def _rate(one: str, title: str, name: str = "") -> t.Column:
    """Return a column of the rate by the median device time."""
    sample = f"{one}_ms"

    def get(record: Record) -> float:
        return flop(record.factors, one) / t.summary(record, sample).median * 1e3 / TERA

    return t.rate(name or f"{one}_tflop_per_s", title, get, sample)


# The leaderboard


def leaderboard(cells: Iterable[Record]) -> list[Record]:
    """Return our cells of the leaderboard's problem, then published entries by time (records of origin `published`)."""
    found = []
    for cell in cells:
        entry = f"here: {backends.named(cell.factors['implementation']).title}"
        found.append(replace(cell, factors={**cell.factors, "entry": entry}))
    entries = [one for one in references.load(EXPERIMENT) if one.metric == ENTRY_METRIC and "entry" in one.factors]
    for ms, one in sorted(((one.value or 0.0, one) for one in entries), key=lambda pair: pair[0]):
        factors = {**one.factors, "entry": str(one.factors["entry"]).replace("_", " ").title(), "device": "cuda"}
        values = {"hardware": one.hardware, "standing": one.remark}
        made = Record(EXPERIMENT, factors, "ok", "", "published", values=values)
        samples = {"both_ms": [[ms]], closure.SAMPLE: [[ms]]}
        found.append(replace(made, samples=samples, timers={"both_ms": "do_bench, by its source"}))
    return found


def _closure(record: Record) -> Any:
    times = [ms for samples in record.samples.get(closure.SAMPLE, []) for ms in samples]
    if times:
        return fmean(times)
    if closure.WHY_NOT in record.values:
        return str(record.values[closure.WHY_NOT])
    asked = record.factors["device"] == "cuda" and record.factors["implementation"] in closure.TIMED
    return t.NOT_RECORDED if asked else "not timed so"


BOARD = [
    t.factor("entry", "Entry"),
    *t.factors(batch="Batch", heads="Heads", seq_len="Sequence length", head_dim="d", dtype="Dtype", causal="Causal"),
    t.median("both_ms", "Forward and backward (ms)"),
    *t.only(lambda r: r.origin != "published", "none", t.iqr("both_ms"), replace(t.count("both_ms"), name="n")),
    t.derived("closure_ms", "By the handout's closure, mean (ms)", _closure),
    _rate("both", "Rate (TFLOP/s)", "tflop_per_s"),
    t.value("hardware", "Hardware", exact=True, without="this site"),
    t.value("standing", "Standing", exact=True, without="measured here"),
    t.timer("both_ms"),
]

# Every cell


def _range_of_turns(sample: str, record: Record) -> float:
    """Return the range of the medians of turns; the interquartile range of calls that were not timed in turns."""
    times = [ms for samples in record.samples[sample] for ms in samples]
    return max(times) - min(times) if record.timers[sample] == IN_TURNS else t.summary(record, sample).iqr


def _in_turns(sample: str, title: str) -> t.Column:
    """Return a column of the median over turns and, as its spread, the range over them."""
    spread_get = partial(_range_of_turns, sample)
    return replace(t.median(sample, title), spread=f"{sample}_range", spread_get=spread_get, range_get=None)


ONE_THREAD = _in_turns("both_one_thread_ms", "End-to-end with launches, backward on the calling thread (ms)")
LAUNCHED = [
    *(_in_turns(f"{one}_launched_ms", f"{word} with launches (ms)") for one, word in PASSES.items()),
    *t.only(lambda r: "both_one_thread_ms" in r.samples, t.NOT_RECORDED, ONE_THREAD),
    replace(t.count("both_launched_ms"), kind="unshown"),
]
CELLS = [
    *PROBLEM,
    t.factor("implementation", "Implementation"),
    *(column for one, word in PASSES.items() for column in t.timed(f"{one}_ms", f"{word} (ms)")),
    t.count("both_ms"),
    *t.only(lambda r: r.has(device="cuda"), "in the host clock", *LAUNCHED),
    *(_rate(one, f"{word} (TFLOP/s)") for one, word in PASSES.items()),
    *t.only(
        lambda r: bool(backends.named(r.factors["implementation"]).sdpa),
        "not SDPA",
        t.value("sdpa_backend", "Backend that SDPA took", exact=True),
    ),
    t.value("largest_relative_error", "Largest error against float64"),
    t.timer("both_ms"),
    replace(t.value("no_graph", "Why not by graph replay", exact=True, without="none"), kind="unshown"),
    *(
        t.published(EXPERIMENT, source, metric, f"{word}, {references.short(source)} (ms)")
        for metric, word in zip(("forward_ms", "backward_ms", ENTRY_METRIC), PASSES.values(), strict=True)
        for source in references.OF_ATTENTION
    ),
]


# The figure

DRAWN_DTYPES = ("bf16", "fp32")
WIDTH = 64  # head dimension; where it was not measured, the largest
MOST_TICKS = 6
# One style per implementation in every panel; "tiled" and "triton" are ours on a CPU and on a GPU.
STYLES = {"eager": 0, "tiled": 1, "triton": 1, "sdpa_flash": 2, "sdpa_cudnn": 3, "triton_ieee": 4, "sdpa_efficient": 5}
STYLES |= {"sdpa_math": 6}


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of time over length."""
    cells = tables[TABLES[1]].frame
    draw = f.of(cells[~cells["implementation"].isin(ELSEWHERE)], _draw)
    return [f.Figure(FIGURES[0], CAPTION, draw, (8.0, 4.0), sample=_drawn(cells))]


def _drawn(cells: pd.DataFrame) -> str:
    """Return the sample to draw, with launches, which the host clock always includes."""
    return "both_launched_ms" if "cuda" in set(cells.loc[cells["status"] == "ok", "device"]) else "both_ms"


def _draw(canvas: Any, cells: pd.DataFrame) -> None:
    """Draw forward and backward together over length, one line per implementation, one panel per dtype."""
    ok = f.main_device(cells[cells["status"] == "ok"])
    device = ok["device"].iloc[0]
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
    """Draw the lines of one dtype and keep one per implementation for the legend."""
    drawn = _drawn(rows)
    for name, group in rows.groupby("implementation", sort=False):
        group = group.sort_values("seq_len", kind="stable")
        bars = pd.to_numeric(group[f"{drawn}_iqr" if drawn == "both_ms" else f"{drawn}_range"], errors="coerce") / 2
        style = {"color": f.COLOURS[STYLES[name]], "marker": f.MARKERS[STYLES[name]], "markersize": 4, "capsize": 2}
        xs, ys = group["seq_len"].astype(float), pd.to_numeric(group[drawn], errors="coerce")
        named[name] = axes.errorbar(xs, ys, yerr=bars, linewidth=1.2, **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    f.plain_ticks(axes, (1, 2, 5))
    levels = sorted({float(length) for length in rows["seq_len"]})
    f.power_of_two_ticks(axes, levels if len(levels) <= MOST_TICKS else levels[::-2][::-1])
