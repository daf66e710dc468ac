"""Figures of strategies: speed and memory by strategy, and what wrapping and prefetching change."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe.show import figures as f
from perfscribe.show.tables import GIB, MIB

CAPTION = (
    "Above: samples a second of all ranks and peak of allocated memory on most ranks, without off-load and "
    "checkpointing; dashes: predicted parameters, gradients and optimizer state. Below: step and peak under FULL_SHARD "
    "by wrapping and prefetching, all variants interleaved; whiskers: interquartile ranges."
)


def strategies(canvas: Any, rows: pd.DataFrame) -> None:
    """Samples/s and peak by strategy, a colour for each dtype."""
    speed, memory = canvas.subplots(1, 2)
    if rows.empty:
        for axes in (speed, memory):
            f.no_data(axes, "not measured")
        return
    chosen = rows[rows["world_size"] == rows["world_size"].max()]
    plain = chosen[(chosen["offload"] == "no") & (chosen["checkpointing"] == "no")]
    chosen = plain if len(plain) else chosen
    names = list(dict.fromkeys(map(_label, chosen.to_dict("records"))))
    unit, name = _unit(chosen["peak_allocated_gib"])
    dtypes = list(dict.fromkeys(chosen["dtype"]))
    width = 0.8 / len(dtypes)
    for number, dtype in enumerate(dtypes):
        group = chosen[chosen["dtype"] == dtype]
        at = [names.index(_label(row)) + width * (number - (len(dtypes) - 1) / 2) for row in group.to_dict("records")]
        rate = group["samples_per_s"].astype(float)
        spread = pd.to_numeric(group["samples_per_s_spread"], errors="coerce").fillna(0) / 2
        colour = f.COLOURS[number]
        speed.bar(at, rate, width, yerr=spread, color=colour, label=dtype, capsize=2)
        memory.bar(at, group["peak_allocated_gib"].astype(float) * unit, width, color=colour, label=dtype)
        for place, height in zip(at, group["state_predicted_gib"].astype(float) * unit, strict=True):
            memory.plot(
                [place - width / 2, place + width / 2], [height] * 2, color="black", linewidth=1.2, linestyle="--"
            )
    speed.set_ylabel("Samples/s")
    memory.set_ylabel(f"Memory of a rank ({name})")
    for axes in (speed, memory):
        axes.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor", fontsize=7)
        axes.grid(axis="x", visible=False)
    speed.set_title(f"{chosen['model'].iloc[0]}, {chosen['world_size'].iloc[0]} ranks", fontsize=8)
    speed.legend(fontsize=7)


def _label(row: dict[str, Any]) -> str:
    return f"{row['strategy']}{' (FSDP1)' if row['api'] == 'FSDP1' else ''}"


def _unit(gib: pd.Series) -> tuple[float, str]:
    """Factor from GiB, and the unit's name."""
    return (1.0, "GiB") if gib.astype(float).max() >= 1 else (GIB / MIB, "MiB")


def wrapping(canvas: Any, rows: pd.DataFrame) -> None:
    """Step time and peak, a bar a variant."""
    panels = canvas.subplots(1, 2, sharey=True)
    if rows.empty:
        for axes in panels:
            f.no_data(axes, "not measured")
        return
    # On two lines, as the longest name would not fit beside both panels on one.
    names = list(rows["api"] + ", " + rows["wrapping"].str.removeprefix("none: ") + "\n" + rows["prefetch"])
    unit, unit_name = _unit(rows["peak_allocated_gib"])
    places = range(len(rows))
    spread = pd.to_numeric(rows["step_ms_iqr"], errors="coerce").fillna(0) / 2
    panels[0].barh(places, rows["step_ms"].astype(float), xerr=spread, color=f.COLOURS[0], capsize=2)
    panels[1].barh(places, rows["peak_allocated_gib"].astype(float) * unit, color=f.COLOURS[1])
    panels[0].set_yticks(places, names, fontsize=7)
    panels[0].invert_yaxis()
    panels[0].set_xlabel("Step (ms)")
    panels[1].set_xlabel(f"Peak allocated ({unit_name})")
    for axes in panels:
        axes.grid(axis="y", visible=False)
