"""Sentences and a picture of weak_scaling: what it shows, and what the workshop's own set-up and formula do to it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe import training_answers as shared
from perfscribe.counters.weak_scaling import DEEPER, SAME_MODEL, SOURCE
from perfscribe.findings import CannotTell, need
from perfscribe.statistics import format_figure
from perfscribe.training_rows import MEASURED, PREDICTED


def _source(rows: pd.DataFrame) -> pd.DataFrame:
    """The workshop's rows, those of the GPUs where there are any."""
    return need(shared.main_rows(rows[rows["variant"] == SOURCE]), 2, "rows of the workshop")


def efficiency(rows: pd.DataFrame) -> str:
    """Of each variant the efficiency at the most ranks measured, by work."""
    rows = shared.numbers(shared.measured(shared.main_rows(need(rows, 1, "rows"))), "work_efficiency")
    variants = [rows[rows["variant"] == variant] for variant in (SOURCE, SAME_MODEL, DEEPER)]
    known = [own for own in variants if len(own) > 1]
    if not known:
        raise CannotTell("variants with two numbers of ranks: none was measured")
    return (
        "Weak-scaling efficiency, by the clock of optimizer steps (median): "
        + "; ".join(_at_most_ranks(own) for own in known)
        + ". Where a GPU's work stays the same, both are the same figure."
    )


def _at_most_ranks(own: pd.DataFrame) -> str:
    """A variant's efficiencies; whether its step differs from the base's at all."""
    first, last = own.iloc[0], own.iloc[-1]
    text = (
        f"{last['variant']}, {last['efficiency']:.0f} % by the time of a step and {last['work_efficiency']:.0f} % by "
        f"its work on {last['world_size']} {shared.units(own)}"
    )
    if not shared.within_spread(first, last):
        return text
    return (
        f"{text} (cannot tell from 100 %: {format_figure(last['step_ms'])} ms for {format_figure(first['step_ms'])}, "
        f"IQRs {format_figure(last['step_ms_iqr'])} and {format_figure(first['step_ms_iqr'])})"
    )


def inverted(rows: pd.DataFrame) -> tuple[str, str]:
    """What the workshop's formula says of a run (its defect 1)."""
    known = shared.numbers(shared.numbers(shared.measured(shared.main_rows(rows)), "inverted"), "runtime_efficiency")
    known = known[known["variant"] == SOURCE]
    # Compared with itself the base is at 100 % by either formula.
    known = need(known[known["world_size"] > known["world_size"].min()], 1, "the workshop's rows beside the base")
    last: Any = known.loc[(known["inverted"] - 100).abs().idxmax()]
    right, wrong = f"{last['runtime_efficiency']:.0f}", f"{last['inverted']:.0f}"
    if right == wrong:
        raise CannotTell(f"{last['world_size']} ranks took as long as the base, so that both formulas give {right} %")
    said = "lost" if last["runtime_efficiency"] < 100 else "gained"
    return (
        f"The workshop divides the current runtime by the base's. Of {last['world_size']} ranks ({last['variant']}) it "
        f"would print {wrong} % where {right} % is the efficiency by that clock, the whole runtime, "
        f"evaluation included, not steps alone: a run that {said} time looks as if it had "
        f"{'gained' if said == 'lost' else 'lost'} it.",
        "contradicted",
    )


def batches(rows: pd.DataFrame) -> tuple[str, str]:
    """Declared batches that were never read (defect 2)."""
    own = _source(rows)
    declared = "/".join(str(batch) for batch in own["batch_size"])
    return (
        f"The batches {declared} were exported under a name that the scripts do not read, so that every GPU had one "
        f"row at once and the total batch was {'/'.join(str(ranks) for ranks in own['world_size'])}, not "
        f"{'/'.join(str(total) for total in own['total_batch'])}. Here a cell's batch is a factor of its record.",
        "contradicted",
    )


def neither(rows: pd.DataFrame) -> tuple[str, str]:
    """As it ran it is neither weak nor strong scaling (defect 3)."""
    own = _source(rows)
    steps = "/".join(str(steps) for steps in own["ran_steps"])
    first, last = own.iloc[0], own.iloc[-1]
    grew = last["ran_tflop"] / first["ran_tflop"]
    return (
        f"As it ran, an epoch had {steps} steps while a GPU's work in each grew {grew:.2f} times "
        f"({format_figure(first['ran_tflop'])} to {format_figure(last['ran_tflop'])} TFLOP): the whole work of an "
        f"epoch changed by a factor of {_epoch_work(last) / _epoch_work(first):.2f} and that of a GPU by "
        f"{_gpu_epoch(last) / _gpu_epoch(first):.2f}, so that neither stayed the same.",
        "contradicted",
    )


def _gpu_epoch(row: Any) -> float:
    return float(row["ran_tflop"] * row["ran_steps"])


def _epoch_work(row: Any) -> float:
    return _gpu_epoch(row) * float(row["world_size"])


def work(rows: pd.DataFrame) -> tuple[str, str]:
    """Even as asked, a GPU's work is not constant (defect 4)."""
    own = _source(rows)
    first, last = own.iloc[0], own.iloc[-1]
    deeper = shared.main_rows(rows[rows["variant"] == DEEPER])
    spread = 100 * (deeper["tflop_per_gpu"].max() / deeper["tflop_per_gpu"].min() - 1)
    return (
        f"Layers times batch stay the same, the head's work does not: from {first['world_size']} to "
        f"{last['world_size']} GPUs a GPU's FLOP fall by a factor of "
        f"{first['tflop_per_gpu'] / last['tflop_per_gpu']:.2f}, and with the vocabulary that ran by "
        f"{first['asked_tflop'] / last['asked_tflop']:.2f}. With the same model and batch they are equal; with "
        f"{'/'.join(str(layers) for layers in deeper['num_layers'])} layers they differ by {spread:.1f} %.",
        "contradicted",
    )


def doubling(rows: pd.DataFrame) -> tuple[str, str]:
    """The model does not double (defect 5)."""
    own = _source(rows)
    first, last = own.iloc[0], own.iloc[-1]
    ranks = last["world_size"] / first["world_size"]
    return (
        f"Twice the layers are not twice the model: over {ranks:g} times the GPUs it grows "
        f"{last['parameters'] / first['parameters']:.2f} times, from {first['parameters']:,} to {last['parameters']:,} "
        f"parameters, and as it ran {last['ran_parameters'] / first['ran_parameters']:.2f} times, from "
        f"{first['ran_parameters']:,} to {last['ran_parameters']:,}.",
        "contradicted",
    )


def draw(canvas: Any, rows: pd.DataFrame) -> None:
    """Efficiency by work over ranks, hollow where predicted; dotted: what the workshop's formula gives."""
    axes = canvas.subplots()
    axes.set_xlabel("Ranks")
    axes.set_ylabel("Efficiency (%)")
    rows = shared.numbers(rows, "work_efficiency")
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    if rows["world_size"].nunique() < 2:
        f.no_data(axes, "measured on one number of ranks alone: there is no efficiency to compare")
        return
    rows = shared.main_rows(rows)
    for colour, (variant, group) in zip(f.COLOURS, rows.groupby("variant", sort=False), strict=False):
        group = group.sort_values("world_size", kind="stable")
        axes.plot(group["world_size"], group["work_efficiency"], color=colour, linewidth=1)
        for origin, filled in ((MEASURED, colour), (PREDICTED, "none")):
            own = group[group["origin"] == origin]
            label = f"{variant}, by work" if origin == MEASURED else None
            axes.scatter(own["world_size"], own["work_efficiency"], edgecolors=colour, facecolors=filled, label=label)
        wrong = shared.numbers(shared.measured(group), "inverted")
        axes.plot(wrong["world_size"], wrong["inverted"], color=colour, linestyle=":", label=f"{variant}, inverted")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    f.power_of_two_ticks(axes, sorted({float(ranks) for ranks in rows["world_size"]}))
    axes.legend(fontsize="small")
