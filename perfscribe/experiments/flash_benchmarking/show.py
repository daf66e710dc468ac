"""Tables and figure of flash_benchmarking."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from perfscribe.attention import backends
from perfscribe.experiments.flash_benchmarking import drawings
from perfscribe.experiments.flash_benchmarking import rows as r
from perfscribe.experiments.flash_benchmarking.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import references
from perfscribe.show import tables as t
from perfscribe.show.ceilings import TERA
from perfscribe.show.tables import Column, Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
PASSES = {"forward": "Forward", "backward": "Backward", "both": "End-to-end"}
SOURCES = {"cs336-writeup-002": "002", "brandon-snider": "brandon-snider", "yyin-dev": "yyin-dev"}
COMPARED = ("seq_len", "head_dim", "dtype", "batch", "implementation")  # with published figures
SHAPE = {"batch": "Batch", "heads": "Heads", "seq_len": "Sequence length", "head_dim": "d"}
SHAPE |= {"dtype": "Dtype", "causal": "Causal"}
HOST_CLOCK_HOLDS_IT = "in the host clock"
NO_PEAK = "no product measured"
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


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """All implementations; rates; the leaderboard; every cell beside published figures."""
    cells = records[r.EXPERIMENT]
    grid, board = r.of_workload(cells, "grid"), r.leaderboard(r.of_workload(cells, "leaderboard"))
    names, peaks = r.shown_implementations(grid), r.measured_peaks(r.of_workload(cells, "matmul"))
    joined = r.joined([cell for cell in grid if cell.factors["implementation"] in names])
    return [
        t.make(TABLES[0], "Implementations of attention", joined, _by_implementation(names), [VERDICT_NOTE]),
        t.make(TABLES[1], "Rates of attention", joined, _rates(names, peaks), [RATES_NOTE]),
        t.make(TABLES[2], "The leaderboard's problem", board, _leaderboard(), [BOARD_NOTE]),
        t.make(TABLES[3], "Every cell of attention", grid, _cells(), [CELLS_NOTE]),
    ]


def _problem() -> list[Column]:
    return [
        t.factor("seq_len", "Sequence length"),
        t.factor("head_dim", "d"),
        t.factor("dtype", "Dtype"),
        t.factor("batch", "Batch"),
        t.factor("device", "Device"),
    ]


def _by_implementation(names: Sequence[str]) -> list[Column]:
    """Forward and backward of each implementation, and verdicts on ours against SDPA's flash backend."""
    columns = _problem()
    for one in ("forward", "backward"):
        columns += [
            r.of_cell(name, t.median(f"{one}_ms", f"{PASSES[one]}, {backends.named(name).title} (ms)"))
            for name in names
        ]
    for one in ("forward", "backward"):
        title = f"Ours against SDPA flash, {one}"
        columns.append(t.derived(f"verdict_{one}", title, r.verdict("sdpa_flash", r.OURS, f"{one}_ms"), exact=True))
    return columns


def _rates(names: Sequence[str], peaks: Mapping[tuple[str, str], float]) -> list[Column]:
    """TFLOP/s of both passes of each implementation, and the share of the measured product's rate that ours reach."""

    def peak(row: Record) -> Any:
        return peaks.get((row.factors["device"], row.factors["dtype"]), NO_PEAK)

    def share(one: str) -> Callable[[Record], Any]:
        def get(row: Record) -> Any:
            ceiling, cell = peak(row), r.cell_of(row, r.OURS)
            if not isinstance(ceiling, float) or cell is None or not cell.samples.get(f"{one}_ms"):
                return NO_PEAK if not isinstance(ceiling, float) else cell.status if cell else r.NOT_PLANNED
            return 100 * r.tflop_per_s(cell, one) / ceiling

        return get

    shown = _problem()
    for one in ("forward", "backward"):
        shown += [r.of_cell(name, _rate(one, backends.named(name).title)) for name in names]
    shown.append(t.derived("matmul_tflop_per_s", "Product, measured (TFLOP/s)", peak))
    for one in ("forward", "backward"):
        shown.append(t.derived(f"share_{one}_percent", f"Ours, {one}, of the product (%)", share(one)))
    return shown


def _rate(one: str, title: str) -> Column:
    name = f"{one}_tflop_per_s"
    return t.rate(name, f"{PASSES[one]}, {title} (TFLOP/s)", lambda record: r.tflop_per_s(record, one), f"{one}_ms")


def _leaderboard() -> list[Column]:
    return [
        t.factor("entry", "Entry"),
        *(t.factor(name, title) for name, title in SHAPE.items()),
        t.derived("both_ms", "Forward and backward (ms)", _time_ms, spread="both_ms_iqr"),
        t.derived("both_ms_iqr", "IQR (ms)", _of_ours(t.iqr("both_ms").get)),
        t.derived("n", "n", _of_ours(t.count("both_ms").get), exact=True),
        t.derived("both_launched_ms", "With launches (ms)", _launched_ms),
        t.derived("tflop_per_s", "Rate (TFLOP/s)", _tflop_per_s),
        t.derived("hardware", "Hardware", _told("hardware", lambda _: "this site"), exact=True),
        t.derived("standing", "Standing", _told("remark", lambda _: "measured here"), exact=True),
        t.derived("timer", "Timer", _told("timer", lambda record: record.timers["both_ms"]), exact=True),
    ]


def _is_entry(record: Record) -> bool:
    return r.ENTRY_METRIC in record.values


def _told(name: str, own: Callable[[Record], str]) -> Callable[[Record], Any]:
    """What an entry says under this name; of a cell of ours that was timed what own() says."""
    return lambda record: record.values[name] if _is_entry(record) else t.if_timed(own)(record)


def _time_ms(record: Record) -> float:
    return float(record.values[r.ENTRY_METRIC]) if _is_entry(record) else t.summary(record, "both_ms").median


def _of_ours(get: Callable[[Record], Any]) -> Callable[[Record], Any]:
    """A figure of our cells; the entries have none."""
    return lambda record: "none" if _is_entry(record) else get(record)


def _tflop_per_s(record: Record) -> float:
    return r.flop(record.factors, "both") / _time_ms(record) * 1e3 / TERA


def _launched_ms(record: Record) -> Any:
    return _time_ms(record) if _is_entry(record) else _launched("both", "").get(record)


def _cells() -> list[Column]:
    """All that a cell gave."""
    columns = [*_problem(), t.factor("implementation", "Implementation")]
    for one, word in PASSES.items():
        columns += [t.median(f"{one}_ms", f"{word} (ms)"), t.iqr(f"{one}_ms", "IQR (ms)")]
    columns.append(t.count("both_ms"))
    columns += [_launched(one, f"{word} with launches (ms)") for one, word in PASSES.items()]
    return [
        *columns,
        t.derived(
            "first_call_s", "First calls beyond the second (s)", t.if_timed(lambda record: record.spent["compile_s"])
        ),
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
        for one in references.load(r.EXPERIMENT)
    }

    def lookup(metric: str, source: str) -> Callable[[Record], Any]:
        return lambda record: known.get((metric, source, *(record.factors[name] for name in COMPARED)), "none")

    metrics = {"forward_ms": "Forward", "backward_ms": "Backward", "forward_backward_ms": "End-to-end"}
    return [
        Column(f"{metric}_{source}", f"{word}, {name} (ms)", lookup(metric, source), kind="published", exact=True)
        for metric, word in metrics.items()
        for source, name in SOURCES.items()
    ]


def _unshown(name: str, title: str, otherwise: str) -> Column:
    """A text of the record that stands in the CSV alone."""
    return Column(
        name, title, t.if_timed(lambda record: record.values.get(name, otherwise)), kind="unshown", exact=True
    )


def _sdpa_backend(record: Record) -> str:
    if not backends.named(str(record.factors["implementation"])).sdpa:
        return "not SDPA"
    return str(record.values.get("sdpa_backend", t.NOT_RECORDED))


def _launched(one: str, title: str) -> Column:
    """Median of a pass by plain events, launches included; the host clock of a CPU holds them anyway."""
    plain = t.median(f"{one}_launched_ms", title)

    def told(get: Callable[[Record], Any] | None) -> Callable[[Record], Any]:
        assert get is not None

        return t.if_timed(lambda record: get(record) if record.factors["device"] == "cuda" else HOST_CLOCK_HOLDS_IT)

    return Column(plain.name, title, told(plain.get), spread=plain.spread, spread_get=told(plain.spread_get))


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Time over length."""
    draw = partial(drawings.times, cells=tables[TABLES[3]].frame)
    return [f.Figure(FIGURES[0], CAPTION, draw, (8.0, 4.0), sample="both_ms")]
