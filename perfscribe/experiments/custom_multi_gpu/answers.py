"""Sentences and a picture of custom_multi_gpu."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe import training_answers as shared
from perfscribe.experiments.custom_multi_gpu.measure import SHAPE, TUNED
from perfscribe.findings import CannotTell, counted, need, shown
from perfscribe.models.workshop_shapes import BLOOM_TOKENIZER_VOCABULARY, SimpleGptShape
from perfscribe.records import Record
from perfscribe.statistics import format_figure
from perfscribe.training_rows import MEASURED, NOT_TRAINED, PREDICTED, WORKSHOPS_LOOP

TRAINER, BARE = "trainer", "bare loop"
RATES = {
    "train_samples_per_second": "Trainer's default",
    "samples_per_s_callback": "callback",
    "stepping_samples_per_second": "steps alone",
}


def is_workshops(record: Record) -> bool:
    """Whether the row belongs into the workshop's tables: Trainer's on GPUs, its stand-in's on a CPU."""
    return bool(record.factors["loop"] == WORKSHOPS_LOOP[record.factors["device"]])


def rows_per_step(record: Record) -> Any:
    """Of one rank in an optimizer step."""
    if not record.ok:
        return None
    return record.values.get("batch_found", record.factors["batch_size"] * record.factors["grad_acc"])


def scaling(rows: pd.DataFrame) -> str:
    """Samples/s and peak memory from one rank to the most."""
    real = need(shared.measured(shared.main_rows(rows)), 2, "numbers of ranks")
    first, last = real.iloc[0], real.iloc[-1]
    rate = last["train_samples_per_second"] / first["train_samples_per_second"]
    text = (
        f"The same model on {last['world_size']} {shared.units(real)} trains {format_figure(rate)} times the samples a "
        f"second that it trains on {first['world_size']}, by Trainer's default figure."
    )
    text += shared.by_steps(first, last) + shared.slower(real)
    known = shared.numbers(real, "peak_mem_alloc_gb")
    if len(known) < 2:
        return text
    held, least = known.iloc[0]["peak_mem_alloc_gb"], known.iloc[-1]["peak_mem_alloc_gb"]
    return f"{text} The peak of a GPU goes from {format_figure(held)} to {format_figure(least)} GB."


def as_scripts_run(record: Record) -> int:
    """Parameters with the vocabulary that the workshop's scripts take, the tokenizer's, whatever is exported."""
    shape = SimpleGptShape(**{name: record.factors[name] for name in SHAPE})
    return replace(shape, vocab_size=BLOOM_TOKENIZER_VOCABULARY).parameters


def first_loss(record: Record) -> Any:
    """The first that was logged: of a step, or the mean of the first few; why not where none was."""
    without = NOT_TRAINED if record.origin == PREDICTED else "none logged"
    return next(iter(record.series.get("train_loss", [])), without)


def model(rows: pd.DataFrame) -> str:
    """Which model the rows are of, beside the one that the workshop's scripts run."""
    row: Any = need(shared.measured(shared.main_rows(rows)), 1, "trainings").iloc[0]
    return (
        f"Every row trains one of {row['parameters']:,} parameters, with {row['vocab_size']:,} entries in its "
        f"vocabulary. The workshop's scripts do not read the VOCAB_SIZE that they export, and take the "
        f"{BLOOM_TOKENIZER_VOCABULARY:,} of BLOOM's tokenizer. With these a model of this shape has "
        f"{row['source_parameters']:,} parameters, {format_figure(row['source_parameters'] / row['parameters'])} times "
        "as many, and other times and memory."
    )


def losses(rows: pd.DataFrame) -> str:
    """The mean losses, over how many steps, beside what a guess at random has."""
    known = need(shared.numbers(shared.measured(shared.main_rows(rows)), "train_loss"), 1, "losses")
    guess = math.log(known.iloc[0]["vocab_size"])
    means = [
        f"{format_figure(row['train_loss'])} over {row['optimizer_steps']} steps on {_on(row)}"
        for _, row in known.iterrows()
    ]
    text = (
        f"A guess that spreads evenly over the {known.iloc[0]['vocab_size']:,} entries of the vocabulary has a loss of "
        f"{format_figure(guess)}, their natural logarithm. The mean over all steps is {', '.join(means)}."
    )
    first = shared.numbers(known, "first_loss")
    if first.empty:
        return text
    text += f" The first loss logged on {_on(first.iloc[0])} is {format_figure(first.iloc[0]['first_loss'])}."
    if first.iloc[0]["first_loss"] <= guess:
        return text
    return (
        f"{text} Training begins far from even: torch draws an embedding with a standard deviation of one, and the "
        "head has the same weights, so that its first answers are sure and wrong. The first steps make up more of the "
        "mean where there are fewer, so that losses of different numbers of ranks do not compare."
    )


def _on(row: Any) -> str:
    return counted(row["world_size"], "rank")


def rates(rows: pd.DataFrame) -> str:
    """The three clocks of the largest measured row."""
    known = shared.measured(shared.main_rows(rows))
    for column in RATES:
        known = shared.numbers(known, column)
    last: Any = need(known, 1, "rows with all three clocks").iloc[-1]
    said = {column: format_figure(last[column]) for column in RATES}
    share = 100 * last["samples_per_s_callback"] / last["stepping_samples_per_second"]
    return (
        f"With {counted(last['world_size'], 'rank')} Trainer's default says {said['train_samples_per_second']} "
        f"samples/s, the callback {said['samples_per_s_callback']} and the clock of steps alone "
        f"{said['stepping_samples_per_second']}: the callback, whose clock runs from before the first step on and "
        f"through evaluation, gives {share:.0f} % of the rate at which steps are made."
    )


def memory(rows: pd.DataFrame) -> str:
    """The mean at rest against the peak."""
    known = shared.numbers(shared.numbers(shared.measured(rows), "avg_mem_alloc_MB"), "peak_mem_alloc_MB")
    if known.empty:
        raise CannotTell("memory of a GPU: none was measured")
    last: Any = known.iloc[-1]
    share = 100 * last["avg_mem_alloc_MB"] / last["peak_mem_alloc_MB"]
    return (
        f"On {counted(last['world_size'], 'GPU')} the callback's mean is {format_figure(last['avg_mem_alloc_MB'])} MB, "
        f"read when activations are gone; the step needs {format_figure(last['peak_mem_alloc_MB'])} MB. The mean is "
        f"{share:.0f} % of what has to fit."
    )


def trainer_overhead(rows: pd.DataFrame) -> str:
    """Trainer's steps against the bare loop's, of the same ranks."""
    steps = shared.numbers(shared.measured(shared.main_rows(rows)), "step_ms").set_index(["loop", "world_size"])
    both = [ranks for loop, ranks in steps.index if loop == TRAINER and (BARE, ranks) in steps.index]
    if not both:
        raise CannotTell("Trainer beside the bare loop: not measured together, as Trainer shards on GPUs alone")
    pairs = [(ranks, steps.loc[(TRAINER, ranks)], steps.loc[(BARE, ranks)]) for ranks in both]
    near = [shared.within_spread(own, bare) for _, own, bare in pairs]
    said = [
        f"{shared.overhead(own['step_ms'], bare['step_ms'])} on {counted(ranks, 'rank')} "
        f"({shown(own, 'step_ms')} for {shown(bare, 'step_ms')} ms{', within spread' if same else ''})"
        for (ranks, own, bare), same in zip(pairs, near, strict=True)
    ]
    text = f"A step of Trainer is {', '.join(said)} than one of the bare loop."
    if not any(near):
        return text
    return (
        f"{text} Within spread: the medians differ by no more than the larger IQR of both, which tells no difference."
    )


def tuned(rows: pd.DataFrame) -> str:
    """MFU and efficiency of the tuned loop, what slowed it, and its rate over the workshop's."""
    own = shared.measured(rows[rows["loop"] == TUNED])
    own = need(shared.numbers(own, "stepping_samples_per_second"), 1, "tuned rows")
    last: Any = own.iloc[-1]
    efficiency = pd.to_numeric(last["efficiency"], errors="coerce")
    mfu = pd.to_numeric(last["mfu"], errors="coerce")
    rate = format_figure(last["stepping_samples_per_second"])
    give, their = ("gives", "its") if last["world_size"] == 1 else ("give", "their")
    text = f"Tuned, {counted(last['world_size'], 'GPU')} {give} {rate} samples/s"
    if pd.notna(mfu):
        text += f" at {mfu:.0f} % of {their} peak rate"
    if pd.notna(efficiency) and last["world_size"] > 1:
        text += f", {format_figure(efficiency)} % of one GPU's rate each{_other_rows(own.iloc[0], last)}"
    workshops = shared.measured(rows[(rows["loop"] == TRAINER) & (rows["world_size"] == last["world_size"])])
    workshops = shared.numbers(workshops, "stepping_samples_per_second")
    if len(workshops):
        factor = last["stepping_samples_per_second"] / workshops.iloc[-1]["stepping_samples_per_second"]
        text += f": {format_figure(factor)} times the workshop's settings"
    return f"{text}.{_slowed(last)}"


def _other_rows(first: Any, last: Any) -> str:
    """How many rows a rank takes where the row that it is compared with takes others; "" where it is as many."""
    return "" if first["batch"] == last["batch"] else f" ({last['batch']} rows a rank, {first['batch']} there)"


def _slowed(row: Any) -> str:
    """What the watch saw of throttling; "" where it saw none."""
    throttled = [flag for flag in str(row["flags"]).split("; ") if flag.startswith("throttled")]
    who = "it was" if row["world_size"] == 1 else "they were"
    return f" Meanwhile {who} {throttled[0]}." if throttled else ""


def draw_rates(canvas: Any, rows: pd.DataFrame) -> None:
    """The three clocks over ranks, of the main device."""
    axes = canvas.subplots()
    axes.set_xlabel("Ranks")
    axes.set_ylabel("Samples/s")
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    rows = shared.main_rows(rows)
    for colour, (column, name) in zip(f.COLOURS, RATES.items(), strict=False):
        known = shared.numbers(rows, column)
        for origin, filled in ((MEASURED, colour), (PREDICTED, "none")):
            own = known[known["origin"] == origin]
            label = name if origin == MEASURED else None
            axes.scatter(own["world_size"], own[column], edgecolors=colour, facecolors=filled, label=label, zorder=3)
        real = known[known["origin"] == MEASURED]
        axes.plot(real["world_size"], real[column], color=colour, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    f.power_of_two_ticks(axes, sorted({float(ranks) for ranks in rows["world_size"]}))
    axes.legend(fontsize="small")
