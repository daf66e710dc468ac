"""Tables and figure of strategies, with the predictions of the analytic models for each plan."""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import pandas as pd

from perfscribe.analytic import fsdp_memory, fsdp_traffic
from perfscribe.analytic.fsdp_memory import Load
from perfscribe.analytic.fsdp_plan import DDP, FSDP1, FSDP2, IMPLICIT, PER_BLOCK, SINGLE, WHOLE
from perfscribe.experiments.fsdp.strategies.levels import SHOWN
from perfscribe.experiments.fsdp.strategies.measure import ACCUMULATION, GRID, WRAPPING, from_level, key_of, plan_of
from perfscribe.instruments.interleaving import split
from perfscribe.instruments.statistics import ratio
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t

TABLES = SHOWN.tables
MB = 10**6
APIS = {SINGLE: "none", DDP: "DDP", FSDP1: "FSDP1", FSDP2: "FSDP2"}
STRATEGIES = {
    SINGLE: "the model alone",
    DDP: "DDP",
    "full_shard": "FULL_SHARD",
    "shard_grad_op": "SHARD_GRAD_OP",
    "hybrid_shard": "HYBRID_SHARD",
    "no_shard": "NO_SHARD",
}
WRAPPINGS = {WHOLE: "none: one unit", "per_block": "per block"}
PREFETCHES = {
    "implicit": "implicit",
    "forward": "forward explicit",
    "backward": "backward explicit",
    "both": "both explicit",
    "backward_pre": "backward_pre",
    "backward_post": "backward_post",
    "backward_post_forward": "backward_post, forward",
    "none": "none",
}
EXCHANGES = {"each": "with each micro-batch", "last": "with the last"}
COMPARED_WITH = key_of({"wrapping": PER_BLOCK, "prefetch": IMPLICIT, "api": FSDP2})
NOTES = (
    "State: parameters, gradients and AdamW's moments in fp32 on the fullest rank, between backward and update.",
    "Sent: bytes per rank and step over a ring, predicted from the plan and seen by the dispatcher; peaks: of torch's "
    "allocator, other plans' memory left out. HYBRID_SHARD takes one machine's ranks as two nodes.",
)
WRAPPING_NOTES = (
    "FULL_SHARD, all variants interleaved within one launch; step: the median over turns of each turn's median.",
    "FSDP1 with one unit, backward_post and forward is what the workshop's settings come to.",
)
ONE_NOTES = (
    "One rank, so that every shard is the whole: FSDP1 turns to NO_SHARD, FSDP2 keeps its strategy and copies units.",
)
ACCUMULATION_NOTES = (
    "Norm of the gradients after two micro-batches over that of the model in one process: a ratio of 1 is right.",
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return speed, state and traffic by plan; wrapping; a single rank; gradients of micro-batches."""
    cells = records["strategies"]
    grid, sums, interleaved = (t.having(cells, part=part) for part in (GRID, ACCUMULATION, WRAPPING))
    single = t.having(grid, world_size=1)
    variants = [_variant(cell, named) for cell in interleaved for named in from_level(cell.factors["variants"])]
    return [
        t.make(TABLES[0], "Sharding strategies", grid, PLANS, NOTES),
        t.make(TABLES[1], "Wrapping and prefetching", variants, VARIANTS, WRAPPING_NOTES),
        t.make(TABLES[2], "A world of one", single, WORLD_OF_ONE, ONE_NOTES),
        t.make(TABLES[3], "Gradients of micro-batches", sums, SUMS, ACCUMULATION_NOTES),
    ]


# --- variants of wrapping and prefetching, which take turns -----------------------------------------------------


def _variant(record: Record, variant: dict[str, str]) -> Record:
    """Return a row of a variant of wrapping and prefetching, with its samples and its ratio to the baseline variant."""
    row, sample = t.of_variant(record, key_of(variant), **variant), f"{key_of(variant)}_step_ms"
    if sample in record.samples:
        row.samples["step_ms"] = _by_turns(record, sample)
    if record.ok:
        row.values |= _ratio(record, sample)
    return row


def _by_turns(record: Record, sample: str) -> list[list[float]]:
    """Return the median of each turn (a variant's run of steps), as the ratio has it; raw samples if not ok."""
    if not record.ok:  # it may have ended during a turn
        return [list(samples) for samples in record.samples[sample]]
    turns = int(record.factors["turns"])
    return [[median(turn) for turn in split(list(samples), turns)] for samples in record.samples[sample]]


def _ratio(record: Record, sample: str) -> dict[str, Any]:
    """Return the columns of the variant's time over the baseline's: ratio, interval, verdict, spread."""
    names, baseline = ("ratio", "interval", "verdict", "ratio_spread"), f"{COMPARED_WITH}_step_ms"
    if baseline not in record.samples:
        return dict.fromkeys(names, f"no {COMPARED_WITH}")
    if sample == baseline:
        return dict.fromkeys(names, "itself")
    compared = ratio(t.turns(record, baseline), t.turns(record, sample))
    return dict(zip(names, (compared.ratio, compared.interval, compared.verdict, compared.spread), strict=True))


# --- columns ----------------------------------------------------------------------------------------------------


def load(record: Record) -> Load:
    """Return the record's model and plan for the analytic models. KeyError: the record has no values."""
    outside, block = (tuple(map(tuple, record.series[name])) for name in ("outside", "block"))
    return Load(outside, block, int(record.values["blocks"]), plan_of(record.factors), record.factors["world_size"])


def _switch(name: str, title: str) -> t.Column:
    return t.named(name, title, {False: "no", True: "yes"})


def _samples_per_s(record: Record) -> float:
    """Return samples of all ranks per second of the median step."""
    factors = record.factors
    return float(1e3 * factors["world_size"] * factors["batch"] / t.summary(record, "step_ms").median)


def _predicted(name: str, title: str, predict: Callable[[Load], float], scale: float = t.GIB) -> t.Column:
    """Return a column predicted from the unwrapped model's parameters and the plan."""
    return t.derived(name, title, lambda record: predict(load(record)) / scale)


RATE = t.rate("samples_per_s", "Samples/s", _samples_per_s, "step_ms")
SENT = [
    _predicted(
        "sent_predicted_mb",
        "Sent, predicted (MB)",
        lambda load: fsdp_traffic.sent_bytes(fsdp_traffic.messages(load)),
        MB,
    ),
    t.derived("sent_mb", "Sent, seen (MB)", lambda record: record.values["sent_bytes"] / MB),
]
ASKED = [
    *t.factors(model="Model", world_size="Ranks"),
    t.named("strategy", "Strategy", STRATEGIES),
    t.named("api", "By", APIS),
    t.factor("dtype", "Dtype"),
    _switch("offload", "CPU off-load"),
    _switch("checkpointing", "Activation checkpointing"),
]
PLANS = [
    *ASKED,
    RATE,
    *t.timed("step_ms", "Step (ms)", "n"),
    t.gib("peak_allocated", "Peak allocated"),
    _predicted(
        "state_predicted_gib", "State a rank, predicted (GiB)", lambda load: sum(fsdp_memory.state_bytes(load).values())
    ),
    t.gib("state", "State a rank, measured"),
    *SENT,
    t.timer("step_ms"),
    *t.settings("batch", "seq_len"),
]
VARIANTS = [
    *t.factors(model="Model", world_size="Ranks", dtype="Dtype"),
    t.named("api", "By", APIS),
    t.named("wrapping", "Wrapping", WRAPPINGS),
    t.named("prefetch", "Prefetch", PREFETCHES),
    t.value("units", "Units", column="applied_units", exact=True),
    RATE,
    *t.timed("step_ms", "Step (ms)", "Turns"),
    t.rounded("ratio", "Time over per block, implicit (×)"),
    *t.exact(interval="95 % interval", verdict="It is"),
    t.gib("peak_allocated", "Peak allocated"),
    _predicted("largest_unit_gib", "Largest unit, predicted (GiB)", fsdp_memory.largest_unit_bytes),
    t.gib("gathered_most", "Gathered in the last block"),
    *SENT,
    t.value("collectives", "Collectives a step", exact=True),
    t.timer("step_ms"),
    *t.settings("batch", "seq_len"),
]
WORLD_OF_ONE = [
    *ASKED,
    t.derived("applied_strategy", "It is", lambda r: STRATEGIES[r.values["applied_strategy"]], exact=True),
    t.gib("gathered_most", "Copied for the last block"),
    t.gib("state", "State"),
    t.value("state_device", "It lies on", exact=True),
    t.gib("peak_allocated", "Peak allocated"),
    RATE,
    t.count("step_ms"),
]
SUMS = [
    *t.factors(model="Model", world_size="Ranks"),
    t.named("api", "By", APIS),
    _switch("offload", "CPU off-load"),
    t.named("exchange", "Gradients exchanged", EXCHANGES),
    *t.values(gradient_norm="Gradient norm", expected_norm="of one process"),
    t.derived("norm_ratio", "Ratio", lambda r: r.values["gradient_norm"] / r.values["expected_norm"]),
]


# --- figure -----------------------------------------------------------------------------------------------------

CAPTION = (
    "Samples per second of all ranks and peak of allocated memory on most ranks, of the hand-in's strategies, by FSDP2 "
    "per block but for the one unit (FSDP1); dashes: parameters, gradients and optimizer state, predicted; whiskers: "
    "the table's ±."
)


ONE_UNIT = "FULL_SHARD, one unit"  # the workshop's own settings
# Strategy, off-load and checkpointing of the bars, in the order of the hand-in's rows.
DRAWN = (
    ("the model alone", "no", "no"),
    ("DDP", "no", "no"),
    ("FULL_SHARD", "no", "no"),
    ("SHARD_GRAD_OP", "no", "no"),
    ("HYBRID_SHARD", "no", "no"),
    (ONE_UNIT, "no", "no"),
    ("FULL_SHARD", "yes", "no"),
    ("FULL_SHARD", "no", "yes"),
    ("FULL_SHARD", "yes", "yes"),
    ("SHARD_GRAD_OP", "yes", "no"),
)


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of speed and memory by strategy."""
    plans, variants = tables[TABLES[0]].ok, tables[TABLES[1]].ok
    whole = variants[(variants["api"] == "FSDP1") & (variants["wrapping"] == WRAPPINGS[WHOLE])]
    whole = whole.assign(strategy=ONE_UNIT, offload="no", checkpointing="no")
    draw = f.of(pd.concat([plans[plans["api"] != "FSDP1"], whole]), _draw)
    return [f.Figure(SHOWN.figures[0], CAPTION, draw, (7.4, 3.8), sample="step_ms")]


def _draw(canvas: Any, rows: pd.DataFrame) -> None:
    """Draw samples/s and peak by strategy, one colour per dtype."""
    speed, memory = canvas.subplots(1, 2, sharey=True)
    chosen = rows[rows["world_size"] == rows["world_size"].max()]
    plans = [*zip(chosen["strategy"], chosen["offload"], chosen["checkpointing"], strict=True)]
    order = [plan for plan in DRAWN if plan in plans]
    chosen = chosen[[plan in order for plan in plans]].assign(
        place=[order.index(plan) for plan in plans if plan in order]
    )
    if chosen.empty:
        f.no_data(speed, "none of the hand-in's strategies was measured")
        return
    dtypes = list(dict.fromkeys(chosen["dtype"]))
    peak_gib = chosen["peak_allocated_gib"].astype(float).max()
    unit, name = (t.GIB / 1e9, "GB") if peak_gib >= 1 else (t.GIB / MB, "MB")
    width = 0.8 / len(dtypes)
    for number, (dtype, colour) in enumerate(zip(dtypes, f.COLOURS, strict=False)):
        group = chosen[chosen["dtype"] == dtype]
        places = group["place"] + width * (number - (len(dtypes) - 1) / 2)
        spread = pd.to_numeric(group["samples_per_s_spread"], errors="coerce").fillna(0) / 2
        speed.barh(
            places, group["samples_per_s"].astype(float), width, xerr=spread, color=colour, label=dtype, capsize=2
        )
        memory.barh(places, group["peak_allocated_gib"].astype(float) * unit, width, color=colour, label=dtype)
        predicted = pd.to_numeric(group["state_predicted_gib"], errors="coerce") * unit  # of one unit unknown
        memory.vlines(predicted, places - width / 2, places + width / 2, color="black", linewidth=1.2, linestyle="--")
    labels = [
        strategy + ", off-load" * (offload == "yes") + ", checkpointing" * (checkpointing == "yes")
        for strategy, offload, checkpointing in order
    ]
    speed.set_yticks(range(len(order)), labels, fontsize=f.LABEL_POINTS)
    speed.invert_yaxis()
    speed.set_xlabel("Samples/s")
    memory.set_xlabel(f"Memory of a rank ({name})")
    for axes in (speed, memory):
        axes.grid(axis="y", visible=False)
    speed.set_title(f"{chosen['model'].iloc[0]}, {chosen['world_size'].iloc[0]} ranks", fontsize=8)
    memory.set_title("dashes: state, predicted", fontsize=8)
    memory.legend(fontsize=7, loc="lower right")
