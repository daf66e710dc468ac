"""Figures of ddp."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from perfscribe.experiments.cs336.ddp import variants as v
from perfscribe.instruments.statistics import format_figure
from perfscribe.show import figures as f

CELL = ["size", "seq_len", "batch", "world_size", "backend", "dtype"]
COMPUTE, COMMUNICATION = f.COLOURS[0], f.COLOURS[1]
LANES = {"compute": COMPUTE, "communication": COMMUNICATION}
PHASE_COLOURS = {"forward": "#D8D8D8", "backward": "#9A9A9A", "communication": "#F4C7A1", "optimizer": "#C9D9E8"}
SHORT = {v.NAIVE: "naive", v.FLAT: "flat", v.OVERLAP: "overlap", v.BUCKETED: "bucket", v.TORCH: "torch DDP"}
NO_FIT = "no fit: "  # prefix of the texts that replace the model's values
FAINTEST = 0.08  # least opacity that is visible
BESIDE = 1.06  # factor in x between cells of the same bucket size


def _cells(rows: pd.DataFrame) -> list[tuple[Any, pd.DataFrame]]:
    return list(rows.groupby(CELL, sort=False))


def _title(key: Any) -> str:
    size, seq_len, batch, world_size, backend, dtype = key
    return f"{size}, context {seq_len}, batch {batch}, {world_size} ranks, {backend}, {dtype}"


def _label(row: pd.Series) -> str:
    name, *whose = str(row["implementation"]).split()
    short = " ".join([SHORT.get(name, name), *whose])
    return f"{short} {float(row['bucket_mb']):g} MB" if row["implementation"] == v.BUCKETED else short


def _floats(rows: pd.DataFrame, name: str) -> np.ndarray:
    return np.asarray(pd.to_numeric(rows[name], errors="coerce"), dtype=float)


def _interval(rows: pd.DataFrame) -> list[np.ndarray]:
    """Return the lengths of the interval below and above exposed communication."""
    low, exposed, high = (_floats(rows, f"exposed{end}_ms") for end in ("_low", "", "_high"))
    return [np.nan_to_num(exposed - low).clip(0), np.nan_to_num(high - exposed).clip(0)]


def models(rows: pd.DataFrame) -> list[tuple[Any, pd.DataFrame]]:
    """Return one cell of each model and context that timelines show, in FP32 where that was measured."""
    chosen: dict[Any, tuple[Any, pd.DataFrame]] = {}
    for key, own in sorted(_cells(rows), key=lambda cell: "fp32" not in cell[0]):
        chosen.setdefault(key[:2], (key, own))
    return list(chosen.values())


def timelines(canvas: Any, rows: pd.DataFrame, traced: pd.DataFrame, lanes: dict[str, str] = LANES) -> None:
    """Draw a panel for each implementation of a model, of naive and overlapped if they are there: phases, and lanes.

    traced: values of the same steps, which give the busy share of each lane's spans.
    """
    shown = []
    for key, own in models(rows):
        asked = own[own["implementation"].str.split().str[0].isin([v.NAIVE, v.OVERLAP])]
        own = asked if len(asked) else own
        values = traced[(traced[CELL] == list(key)).all(axis=1)]
        by_label = (own.apply(_label, axis=1), values.apply(_label, axis=1))
        for name in dict.fromkeys(by_label[0]):
            shown.append((key, name, own[by_label[0] == name], values[by_label[1] == name]))
    panels = canvas.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
    titled = None
    for axes, (key, name, spans, step) in zip(panels, shown, strict=True):
        _one_timeline(axes, spans, step, "GPU" if "nccl" in key else "CPU", lanes)
        axes.set_ylabel(name, fontsize=7)
        if key != titled:
            axes.set_title(_title(key), fontsize=7.5)
        titled = key
    own = pd.concat([spans for _, _, spans, _ in shown])
    panels[-1].set_xlabel("Time in the step (ms)", fontsize=8)
    panels[-1].set_xlim(0, 1.03 * float(_floats(own, "step_ms").max()))
    drawn = {name: shade for name, shade in PHASE_COLOURS.items() if f"phase {name}" in set(own["lane"])}
    phases = {("wait for communication" if name == "communication" else name): c for name, c in drawn.items()}
    patches = [Patch(color=shade, label=name) for name, shade in (lanes | phases).items()]
    patches.append(Patch(color=COMPUTE, alpha=0.4, linewidth=0, label="paler: partly idle"))
    canvas.legend(handles=patches, fontsize=7, handlelength=1, loc="outside upper center", ncols=min(len(patches), 7))


def _one_timeline(axes: Any, rows: pd.DataFrame, step: pd.DataFrame, device: str, lanes: dict[str, str]) -> None:
    """Draw a traced step's spans: a row of phases, a row of the device's lanes. step: its row of values."""
    bars = {lane: (-0.4 * place, 0.4, shade) for place, (lane, shade) in enumerate(lanes.items())}
    bars |= {f"phase {phase}": (0.6, 0.8, shade) for phase, shade in PHASE_COLOURS.items()}
    for lane, (bottom, height, shade) in bars.items():
        own = rows[rows["lane"] == lane]
        spans = list(zip(_floats(own, "start_ms"), _floats(own, "duration_ms"), strict=True))
        alpha = _busy(own, step, lane) if lane in lanes else 1.0
        axes.broken_barh(spans, (bottom, height), facecolors=shade, alpha=alpha, linewidth=0, rasterized=True)
    axes.set_yticks([0, 1], [device, "phases"], fontsize=7)
    axes.set_ylim(0.2 - 0.4 * len(lanes), 2.1)  # room for a line of text
    axes.grid(visible=False)
    part, sent, both, whole = (
        format_figure(float(step.iloc[0][f"traced_{what}_ms"])) for what in ("compute", "communication", "both", "step")
    )
    corner: dict[str, Any] = {"fontsize": 6.5, "ha": "left", "va": "top", "transform": axes.transAxes}
    said = f"step {whole} ms: computing {part}, communicating {sent}, both at once {both}"
    axes.axvline(float(step.iloc[0]["traced_step_ms"]), color="#333333", linewidth=0.8)
    axes.text(0.01, 0.97, said, bbox={"color": "white", "pad": 1}, **corner)


def _busy(spans: pd.DataFrame, step: pd.DataFrame, lane: str) -> float:
    """Return the busy share of a lane's spans, which were recorded including gaps too short to be drawn."""
    covered = float(_floats(spans, "duration_ms").sum())
    if not covered:
        return 1.0
    return min(1.0, max(FAINTEST, float(step.iloc[0][f"traced_{lane}_ms"]) / covered))


def buckets(canvas: Any, rows: pd.DataFrame) -> None:
    """Draw exposed communication over bucket size, one colour per cell, with the model where it fits."""
    axes = canvas.subplots()
    rows = rows[rows["implementation"] == v.BUCKETED]
    if rows.empty:  # a chapter may ask for no bucketed DDP
        return
    cells = _cells(rows)
    for number, (key, own) in enumerate(cells):
        own = own.sort_values("bucket_mb", key=lambda sizes: sizes.astype(float), kind="stable")
        colour, marker = f.COLOURS[number % len(f.COLOURS)], f.MARKERS[number % len(f.MARKERS)]
        sizes = _floats(own, "bucket_mb")
        style = {"color": colour, "marker": marker, "markersize": 4, "linestyle": "none", "capsize": 2}
        beside = sizes * BESIDE ** (number - (len(cells) - 1) / 2)
        axes.errorbar(beside, _floats(own, "exposed_ms"), yerr=_interval(own), label=_title(key), **style)
        if not str(own["bandwidth"].iloc[0]).startswith(NO_FIT):
            axes.plot(sizes, _floats(own, "model_ms"), color=colour, linewidth=1, linestyle="--")
    axes.set_xscale("log")
    f.power_of_two_ticks(axes, sorted(set(_floats(rows, "bucket_mb"))))
    axes.set_xlabel("Bucket (MB)")
    axes.set_ylabel("Cost of communication (ms)")
    axes.axhline(0, color="#555555", linewidth=0.8)
    axes.legend(fontsize=7)
