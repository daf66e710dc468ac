"""Tables and figure of the problem benchmarking_script, and of the times of benchmarking_mixed_precision."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from perfscribe.analytic import flops
from perfscribe.analytic.shapes import SIZES
from perfscribe.experiments.cs336.end_to_end.levels import SHOWN
from perfscribe.instruments.precision import DTYPES
from perfscribe.records.records import Record
from perfscribe.show import against, references
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.ceilings import TERA, mfu_percent

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
TIMER_NOTE = "Host clock, the device synchronised before and after each phase. damek's forward is without a graph."
RATE_NOTE = (
    "FLOP of a step by PaLM, appendix B, without the embedding and without a causal discount; MFU divides by the "
    "device's dense datasheet peak."
)
PASSES_NOTE = (
    "fp32: true fp32, TF32 off; tf32: fp32 with TF32 matrix products; bf16, fp16: autocast with fp32 parameters. "
    "Speed-up: median in fp32 over median in the dtype, of cells that were not interleaved. A published figure stands "
    "in every row that differs in nothing that its source states."
)
SPEEDUP_CAPTION = (
    "Speed-up over true fp32 by model size, of forward, backward and both timed as one, one line per precision: "
    "ratios of medians, host clock. Cells were not interleaved. A size whose optimizer does not fit has only the last."
)
REFERENCE = "fp32"
OTHERS = tuple(dtype for dtype in DTYPES if dtype != REFERENCE)
# Passes by the write-ups' names, with the name of their samples and published times.
PASSES = {"forward": "forward_ms", "backward": "backward_ms", "forward+backward": "forward_backward_ms"}
ONE_PASS = "pass_ms"
PUBLISHED = "mixed_precision"  # reference file of the write-ups' passes
NO_FP32 = "fp32 not measured"
WITH_FP32 = (references.OF_002, references.OF_004, "brandon-snider")  # sources with fp32 and another dtype
SOURCES = (*WITH_FP32, "damek")


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return times beside published ones; tokens/s and MFU; every pass by precision at the fullest context."""
    cells = records["end_to_end"]
    context = fullest_context(cells)
    passes = _single_passes(record for record in cells if record.factors["seq_len"] == context)
    title = "Passes by precision, beside write-ups" + (f", context {context}" if context else "")
    return [
        t.make(TABLES[0], "Forward, backward and AdamW step", cells, TIMES, [TIMER_NOTE]),
        t.make(TABLES[1], "Tokens a second and model FLOP utilisation", cells, RATES, [RATE_NOTE]),
        t.make(TABLES[2], title, passes, _pass_columns(passes), [PASSES_NOTE]),
    ]


SETTING = t.factors(seq_len="Context", batch="Batch")
FACTORS = [t.factor("size", "Size"), *SETTING, *t.factors(dtype="Dtype", device="Device")]


def _spread_columns(sample: str, title: str) -> list[t.Column]:
    return [t.mean(sample, f"{title}, mean (ms)"), t.std(sample, "Std (ms)"), *t.timed(sample, f"{title}, median (ms)")]


TIMES = [
    *FACTORS,
    *_spread_columns("forward_ms", "Forward"),
    *_spread_columns("backward_ms", "Backward"),
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


def _step_s(record: Record) -> float:
    return t.summary(record, "full_step_ms").median / 1e3


def _tokens(record: Record) -> int:
    return int(record.factors["batch"]) * int(record.factors["seq_len"])


def _step_flop(record: Record) -> float:
    """Return the FLOP of a step by PaLM's convention."""
    size, seq_len = record.factors["size"], record.factors["seq_len"]
    return float(flops.palm_flop_per_token(SIZES[size], seq_len) * _tokens(record))


RATES = [
    *FACTORS,
    *t.timed("full_step_ms", "Full step (ms)"),
    t.rate("tokens_per_s", "Tokens/s", lambda r: _tokens(r) / _step_s(r), "full_step_ms"),
    t.derived("step_tflop", "FLOP of a step (TFLOP)", lambda r: _step_flop(r) / TERA),
    t.rate("tflop_per_s", "TFLOP/s", lambda r: _step_flop(r) / TERA / _step_s(r), "full_step_ms"),
    t.rate("mfu_percent", "MFU (%)", lambda r: mfu_percent(r, _step_flop(r), _step_s(r)), "full_step_ms"),
    t.count("full_step_ms"),
]


# --- precisions -----------------------------------------------------------------------------------------------------


def fullest_context(cells: Sequence[Record]) -> int | None:
    """Return the context with most dtypes, then most cells, measured; of several the longest; None without cells."""
    chosen = [record for record in cells if record.ok] or list(cells)
    dtypes: dict[int, Counter[str]] = {}
    for record in chosen:
        dtypes.setdefault(record.factors["seq_len"], Counter())[record.factors["dtype"]] += 1
    return max(dtypes, key=lambda n: (len(dtypes[n]), dtypes[n].total(), n), default=None)


def _single_passes(cells: Iterable[Record]) -> list[Record]:
    """Return one record per cell and pass, with its samples under ONE_PASS; ok if the pass ran, if not a step."""
    passes = []
    for record in cells:
        for name, sample in PASSES.items():
            factors = {**record.factors, "pass_type": name}
            timed = {ONE_PASS: record.samples[sample]} if sample in record.samples else {}
            passes.append(replace(record, factors=factors, samples=timed))
            if timed and record.status == "oom":
                passes[-1] = replace(passes[-1], status="ok", reason="")
    return passes


def _pass_columns(passes: Sequence[Record]) -> list[t.Column]:
    in_fp32 = against.base_of(passes, ["dtype"], dtype=REFERENCE)

    return [
        t.factor("model_size", "model_size", lambda record: record.factors["size"]),
        t.factor("precision", "precision", lambda record: record.factors["dtype"]),
        t.factor("pass_type", "pass_type"),
        t.derived("avg_time_ms", "avg_time_ms", lambda r: t.summary(r, ONE_PASS).mean, spread="pass_ms_std"),
        t.std(ONE_PASS, "Std (ms)"),
        t.median(ONE_PASS, "Median (ms)", name="median_ms"),
        t.count(ONE_PASS),
        against.ratio(
            "speedup", "Speed-up (×)", in_fp32, NO_FP32, lambda r: 1 / t.summary(r, ONE_PASS).median, ONE_PASS
        ),
        *SETTING,
        t.factor("device", "Device"),
        *(
            t.quoted(f"ms_{source}", f"{references.short(source)} (ms)", partial(_published, source))
            for source in SOURCES
        ),
        *(
            t.quoted(f"speedup_{source}", f"{references.short(source)} (×)", partial(_published_speedup, source))
            for source in WITH_FP32
        ),
    ]


def _published(source: str, record: Record, **others: Any) -> Any:
    """Return the source's time of the pass; `others` replace levels of the record."""
    metric, levels = PASSES[record.factors["pass_type"]], {**record.factors, **others}
    return references.shown(PUBLISHED, source, metric, levels)


def _published_speedup(source: str, record: Record) -> Any:
    """Return the source's fp32 time over its time in the dtype, if it has both."""
    before, after = _published(source, record, dtype=REFERENCE), _published(source, record)
    comparable = not record.has(dtype=REFERENCE) and isinstance(before, float) and isinstance(after, float)
    return round(before / after, 2) if comparable else "none"


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of speed-up over fp32 by size."""
    rows = tables[TABLES[2]].ok
    draw = f.of(rows[(rows["precision"] != REFERENCE) & (rows["speedup"] != NO_FP32)], _draw_speedups)
    return [f.Figure(FIGURES[0], SPEEDUP_CAPTION, draw, (9.0, 3.6), "forward_ms")]


def _draw_speedups(canvas: Any, rows: pd.DataFrame) -> None:
    """Draw a panel per pass, a line per dtype."""
    rows = rows.astype({"speedup": float})
    sizes = list(dict.fromkeys(rows["model_size"]))
    panels = canvas.subplots(1, len(PASSES), sharey=True)
    for axes, name in zip(panels, PASSES, strict=True):
        for number, dtype in enumerate(OTHERS):
            line = rows[(rows["pass_type"] == name) & (rows["precision"] == dtype)]
            style = {"color": f.COLOURS[number], "marker": f.MARKERS[number], "markersize": 5, "linewidth": 1.2}
            if len(line):
                places = [sizes.index(size) for size in line["model_size"]]
                axes.plot(places, line["speedup"], label=dtype.upper(), **style)
        axes.axhline(1, color="#555555", linewidth=0.8, linestyle="--")
        axes.set_title(name.capitalize())
        axes.set_xlabel("Model size")
        axes.set_xticks(range(len(sizes)), sizes)
        axes.set_xlim(-0.5, len(sizes) - 0.5)
        axes.legend()
    panels[0].set_ylim(0, 1.08 * max(1.0, rows["speedup"].max()))
    panels[0].set_ylabel("Speed-up over true fp32 (×)")
