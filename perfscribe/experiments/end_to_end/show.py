"""Tables and figure of benchmarking_script and of benchmarking_mixed_precision's timings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pandas as pd

from perfscribe.analytic import flops, peaks
from perfscribe.analytic.shapes import SIZES
from perfscribe.experiments.end_to_end.levels import SHOWN
from perfscribe.instruments.precision import DTYPES
from perfscribe.records.records import Record
from perfscribe.show import against, references
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.ceilings import TERA

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
TIMER_NOTE = (
    "Host clock, the device synchronised before and after each phase; backward by difference is forward and backward "
    "timed as one, minus forward. damek's forward is without a graph."
)
RATE_NOTE = (
    "FLOP of a step by PaLM, appendix B, without the embedding and without a causal discount; MFU divides by the "
    "device's dense datasheet peak."
)
PASSES_NOTE = (
    "fp32: true fp32, TF32 off; tf32: fp32 with TF32 matrix products; bf16, fp16: autocast with fp32 parameters. A "
    "published figure stands in every row that differs in nothing that its source states."
)
SPEEDUP_NOTE = (
    "Speed-up: median time in true fp32 over the median time in the other dtype. The cells were measured one after the "
    "other, not interleaved."
)
SPEEDUP_CAPTION = (
    "Speed-up over true fp32 by model size, of forward, backward and both timed as one, one line per precision: "
    "ratios of medians, host clock. Cells were not interleaved, so the ratios have no interval."
)
REFERENCE = "fp32"
OTHERS = tuple(dtype for dtype in DTYPES if dtype != REFERENCE)
# The passes by the names that write-ups give them, and where their samples and published times stand.
PASSES = {"forward": "forward_ms", "backward": "backward_ms", "forward+backward": "forward_backward_ms"}
ONE_PASS = "pass_ms"
NOT_PLANNED = "not planned"
SOURCES = {
    "cs336-writeup-002": "002",
    "cs336-writeup-004": "004",
    "brandon-snider": "brandon-snider",
    "damek": "damek",
}
# What the sources give in fp32 too.
PUBLISHED_SPEEDUPS = (
    ("bf16", "cs336-writeup-002"),
    ("bf16", "cs336-writeup-004"),
    ("bf16", "brandon-snider"),
    ("fp16", "cs336-writeup-004"),
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Times as asked, beside published ones; rates; at one context precisions in the two shapes of write-ups."""
    cells = records["end_to_end"]
    context = fullest_context(cells)
    at_context = [record for record in cells if record.factors["seq_len"] == context]
    at = f", context {context}" if context else ""
    passes, sizes = _single_passes(at_context), _side_by_side(at_context)
    return [
        t.make(TABLES[0], "Forward, backward and AdamW step", cells, _time_columns(), [TIMER_NOTE]),
        t.make(TABLES[1], "Tokens a second and model FLOP utilisation", cells, _rate_columns(), [RATE_NOTE]),
        t.make(TABLES[2], f"Passes by precision, beside write-ups{at}", passes, _pass_columns(), [PASSES_NOTE]),
        t.make(TABLES[3], f"Precisions side by side{at}", sizes, _speedup_columns(), [SPEEDUP_NOTE]),
    ]


SETTING = t.factors(seq_len="Context", batch="Batch")


FACTORS = [t.factor("size", "Size"), *SETTING, *t.factors(dtype="Dtype", device="Device")]


def _spread_columns(sample: str, title: str) -> list[t.Column]:
    return [
        t.mean(sample, f"{title}, mean (ms)"),
        t.std(sample, "Std (ms)"),
        *t.timed(sample, f"{title}, median (ms)"),
    ]


def _time_columns() -> list[t.Column]:
    return [
        *FACTORS,
        *_spread_columns("forward_ms", "Forward"),
        *_spread_columns("backward_ms", "Backward"),
        t.derived(
            "backward_by_difference_ms",
            "Backward by difference (ms)",
            lambda r: t.summary(r, "forward_backward_ms").median - t.summary(r, "forward_ms").median,
            spread="backward_ms_iqr",
        ),
        *_spread_columns("optimizer_ms", "Optimizer"),
        t.median("forward_no_grad_ms", "Forward under no_grad (ms)"),
        *t.timed("full_step_ms", "Full step (ms)"),
        t.count("forward_ms"),
        *t.settings("warmup_steps"),
        t.published("end_to_end", "brandon-snider", "forward_ms", "Forward, brandon-snider (ms)"),
        t.published("end_to_end", "brandon-snider", "backward_ms", "Backward, brandon-snider (ms)"),
        t.published("end_to_end", "damek", "forward_no_grad_ms", "Forward under no_grad, damek (ms)"),
        t.published("end_to_end", "damek", "forward_backward_ms", "Forward and backward, damek (ms)"),
    ]


# --- rates ----------------------------------------------------------------------------------------------------------


def _rate_columns() -> list[t.Column]:
    return [
        *FACTORS,
        *t.timed("full_step_ms", "Full step (ms)"),
        t.rate("tokens_per_s", "Tokens/s", lambda r: _tokens(r) / _step_s(r), "full_step_ms"),
        t.derived("step_tflop", "FLOP of a step (TFLOP)", lambda r: _step_flop(r) / TERA),
        t.rate("tflop_per_s", "TFLOP/s", _tflop_per_s, "full_step_ms"),
        t.rate("mfu_percent", "MFU (%)", _mfu_percent, "full_step_ms"),
        t.derived("peak_tflop_per_s", "Peak (TFLOP/s)", _peak_tflop_per_s),
        t.count("full_step_ms"),
    ]


def _step_s(record: Record) -> float:
    return t.summary(record, "full_step_ms").median / 1e3


def _tokens(record: Record) -> int:
    return int(record.factors["batch"]) * int(record.factors["seq_len"])


def _step_flop(record: Record) -> float:
    """PaLM's convention."""
    size, seq_len = record.factors["size"], record.factors["seq_len"]
    return float(flops.palm_flop_per_token(SIZES[size], seq_len) * _tokens(record))


def _tflop_per_s(record: Record) -> float:
    return _step_flop(record) / TERA / _step_s(record)


def _peak(record: Record) -> peaks.PeakRate | None:
    gpu = record.values.get("gpu_name")
    return peaks.peak_flops(str(gpu), str(record.factors["dtype"])) if gpu else None


def _peak_tflop_per_s(record: Record) -> Any:
    peak = _peak(record)
    return "not known" if peak is None else peak.flop_per_s / TERA


def _mfu_percent(record: Record) -> Any:
    share = peaks.mfu(_step_flop(record), _step_s(record), _peak(record))
    return "no peak known" if share is None else 100 * share


# --- precisions -----------------------------------------------------------------------------------------------------


def fullest_context(cells: Sequence[Record]) -> int | None:
    """The context at which most dtypes, then most cells, were measured; of several the longest; None without cells."""
    chosen = [record for record in cells if record.ok] or list(cells)
    dtypes: dict[int, Counter[str]] = {}
    for record in chosen:
        dtypes.setdefault(record.factors["seq_len"], Counter())[record.factors["dtype"]] += 1
    return max(dtypes, key=lambda n: (len(dtypes[n]), dtypes[n].total(), n), default=None)


def _single_passes(cells: Iterable[Record]) -> list[Record]:
    """One record a cell and pass, its samples under ONE_PASS."""
    return [
        replace(
            record,
            factors={**record.factors, "pass_type": name},
            samples={ONE_PASS: record.samples[sample]} if sample in record.samples else {},
        )
        for record in cells
        for name, sample in PASSES.items()
    ]


def _side_by_side(cells: Iterable[Record]) -> list[Record]:
    """One record a pass of the cells that differ in nothing but the dtype; its values are these cells by dtype.

    It is ok where the pass was measured in any dtype; each flag says of which dtype's cell it is.
    """
    rows = []
    for found in t.grouped(cells, lambda record: against.workload(record, ["dtype"])).values():
        dtypes = {str(one.factors["dtype"]): one for one in found}
        flags = [f"{dtype}: {'; '.join(one.flags)}" for dtype, one in dtypes.items() if one.ok and one.flags]
        environments = sorted({name for one in found for name in one.environments})
        for name, sample in PASSES.items():
            first, *_ = measured = [one for one in found if sample in one.samples] or found
            has_figures = sample in measured[0].samples
            row = replace(
                first,
                factors={k: v for k, v in first.factors.items() if k != "dtype"} | {"pass_type": name},
                samples={},
                values=dict(dtypes) if has_figures else {},
                environments=environments,
                flags=flags,
            )
            rows.append(replace(row, status="ok", reason="") if has_figures else row)
    return rows


def _level(name: str, factor: str) -> t.Column:
    """A factor under the name that write-ups give it."""
    return t.factor(name, name, lambda record: record.factors[factor])


def _sample(record: Record) -> str:
    return PASSES[record.factors["pass_type"]]


def _pass_columns() -> list[t.Column]:
    def published(record: Record, source: str) -> Any:
        return references.shown(_of_precisions(), source, _sample(record), record.factors)

    return [
        _level("model_size", "size"),
        _level("precision", "dtype"),
        _level("pass_type", "pass_type"),
        t.derived("avg_time_ms", "avg_time_ms", lambda r: t.summary(r, ONE_PASS).mean, spread="pass_ms_std"),
        t.std(ONE_PASS, "Std (ms)"),
        t.median(ONE_PASS, "Median (ms)", name="median_ms"),
        t.count(ONE_PASS),
        *SETTING,
        t.factor("device", "Device"),
        *(
            t.quoted(f"ms_{source}", f"{name} (ms)", partial(published, source=source))
            for source, name in SOURCES.items()
        ),
    ]


@cache
def _of_precisions() -> tuple[references.Reference, ...]:
    return tuple(references.load("mixed_precision"))


def _speedup_columns() -> list[t.Column]:
    def published(record: Record, dtype: str, source: str) -> Any:
        found = published_speedup(source, record.factors, dtype, _sample(record))
        return "none" if found is None else round(found, 2)

    return [
        _level("model_size", "size"),
        _level("pass_type", "pass_type"),
        *(_with_spread(f"{dtype}_ms", f"{dtype.upper()} (ms)", _time_ms, dtype) for dtype in DTYPES),
        *(_with_spread(f"{dtype}_speedup", f"{dtype.upper()} speed-up (×)", _speedup, dtype) for dtype in OTHERS),
        *(
            t.quoted(
                f"{dtype}_speedup_{source}",
                f"{dtype.upper()}, {SOURCES[source]} (×)",
                partial(published, dtype=dtype, source=source),
            )
            for dtype, source in PUBLISHED_SPEEDUPS
        ),
        t.derived("n", "n", _fewest, exact=True),
        *SETTING,
        t.factor("device", "Device"),
    ]


# A value and how far it may be off.
WithSpread = Callable[[Record, str], tuple[float | str, float | str]]


def _with_spread(name: str, title: str, get: WithSpread, dtype: str) -> t.Column:
    """A value rounded by its spread; KeyError where no dtype of the row was measured."""

    def part(number: int) -> Callable[[Record], Any]:
        def of_row(record: Record) -> Any:
            if not record.values:
                raise KeyError(name)
            return get(record, dtype)[number]

        return of_row

    return t.Column(name, title, part(0), spread=f"{name}_spread", spread_get=part(1))


def _time_ms(row: Record, dtype: str) -> tuple[float | str, float | str]:
    """Median and IQR of a dtype's pass, or in one word why there is none."""
    cell = row.values.get(dtype)
    if cell is None:
        return NOT_PLANNED, t.ONE_SAMPLE
    if _sample(row) not in cell.samples:  # which may be there although the cell failed later
        return cell.status, t.ONE_SAMPLE
    found = t.summary(cell, _sample(row))
    return found.median, found.iqr


def _speedup(row: Record, dtype: str) -> tuple[float | str, float | str]:
    """Median time in fp32 over that in the dtype, and how far both medians may put it off."""
    if dtype not in row.values:
        return NOT_PLANNED, t.ONE_SAMPLE
    (before, _), (after, _) = _time_ms(row, REFERENCE), _time_ms(row, dtype)
    if isinstance(before, str) or isinstance(after, str):
        why = f"{REFERENCE}: {before}" if isinstance(before, str) else after
        return why, why
    both = (t.summary(row.values[one], _sample(row)) for one in (REFERENCE, dtype))
    return before / after, t.ratio_spread(before / after, *both)


def _fewest(row: Record) -> int:
    return min(t.summary(cell, _sample(row)).n for cell in row.values.values() if _sample(row) in cell.samples)


def published_speedup(source: str, levels: Mapping[str, Any], dtype: str, sample: str) -> float | None:
    """A source's time in fp32 over its time in the dtype; None where it lacks one of them."""
    before, after = (
        references.of_source(_of_precisions(), source, sample, {**levels, "dtype": one}) for one in (REFERENCE, dtype)
    )
    if before is None or after is None or before.value is None or after.value is None:
        return None
    return before.value / after.value


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Speed-up over fp32 by size."""
    frame = tables[TABLES[3]].frame
    return [f.Figure(FIGURES[0], SPEEDUP_CAPTION, partial(draw_speedups, table=frame), (9.0, 3.6), "forward_ms")]


def draw_speedups(canvas: Any, table: pd.DataFrame) -> None:
    """A panel a pass, a line a dtype; why a size has no point stands at its place."""
    panels = canvas.subplots(1, len(PASSES), sharey=True)
    highest = 1.0
    for axes, name in zip(panels, PASSES, strict=True):
        rows = table[(table["pass_type"] == name) & (table["status"] == "ok")]
        highest = max([highest, *_draw_pass(axes, rows)])
        axes.set_title(name.capitalize())
        axes.set_xlabel("Model size")
    panels[0].set_ylim(0, highest * 1.08)
    panels[0].set_ylabel("Speed-up over true fp32 (×)")


def _draw_pass(axes: Any, rows: pd.DataFrame) -> list[float]:
    """Draw one pass; returns the speed-ups drawn."""
    sizes = list(dict.fromkeys(rows["model_size"]))
    drawn: list[float] = []
    for number, dtype in enumerate(OTHERS):
        known = rows[pd.to_numeric(rows[f"{dtype}_speedup"], errors="coerce").notna()]
        if known.empty:
            continue
        at, speedups = [sizes.index(size) for size in known["model_size"]], known[f"{dtype}_speedup"].astype(float)
        style = {"color": f.COLOURS[number], "marker": f.MARKERS[number], "markersize": 5, "linewidth": 1.2}
        axes.plot(at, speedups, label=dtype.upper(), **style)
        drawn += list(speedups)
    if not drawn:
        f.no_data(axes, "no size has fp32 and another dtype")
        return drawn
    for size, fp32_ms in zip(rows["model_size"], rows["fp32_ms"], strict=True):
        if isinstance(fp32_ms, str):
            style = {"xycoords": ("data", "axes fraction"), "ha": "center", "fontsize": 7, "color": "#B00020"}
            axes.annotate(f"fp32: {fp32_ms}", (sizes.index(size), 0.02), **style)
    axes.axhline(1, color="#555555", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.legend()
    return drawn
