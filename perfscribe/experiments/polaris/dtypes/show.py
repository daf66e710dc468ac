"""Table and figure of training speed and peak memory by data type (Polaris homework)."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from perfscribe.experiments.polaris import epoch_columns
from perfscribe.experiments.polaris.dtypes.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import against
from perfscribe.show import figures as f
from perfscribe.show import tables as t

NO_BASE = "fp32 not measured"
NOTES = (
    "fp16 and bf16 are autocast with fp32 weights, fp16 with a loss scaler; fp32 is without TF32. Host clock; peak "
    "memory is of torch's allocator in one untimed step.",
    "Against fp32 of the same width and target length. Skipped: steps in which fp16's scaled gradients overflowed.",
)
CAPTION = (
    "Samples per second over target length, one panel per width, one line per data type: from the median time of the "
    "epochs after the first, host clock; bars: the table's ±; all axes begin at 0."
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the homework's table, each dtype compared with fp32."""
    cells = records["dtypes"]
    fp32 = against.base_of(cells, ("dtype",), dtype="fp32")
    columns = [
        *t.factors(device="Device", d_model="Features (d_model)", target_length="Target length", dtype="Data type"),
        *t.factors(samples="Samples", epochs="Epochs"),
        epoch_columns.TOTAL,
        *epoch_columns.LATER_EPOCHS,
        against.ratio("time_ratio", "Time against fp32 (×)", fp32, NO_BASE, sample="epoch_s"),
        against.apart("epochs_apart", "Its later epochs", fp32, NO_BASE, "epoch_s"),
        epoch_columns.PEAK_GIB,
        against.ratio(
            "memory_ratio", "Peak memory against fp32 (×)", fp32, NO_BASE, lambda r: r.values["peak_allocated_bytes"]
        ),
        t.value("final_loss", "Final loss"),
        t.value("skipped_steps", "Skipped steps", exact=True),
        t.timer("epoch_s"),
        *t.settings("batch"),
    ]
    title = "Training by data type, target length and width"
    return [t.make(SHOWN.tables[0], title, cells, columns, NOTES)]


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of throughput over target length."""
    draw = f.of(tables[SHOWN.tables[0]].frame, _draw)
    return [f.Figure(SHOWN.figures[0], CAPTION, draw, (7.0, 3.4), "epoch_s")]


def _draw(canvas: Any, cells: pd.DataFrame) -> None:
    """Draw one panel per width, one line per dtype."""
    rows = f.main_device(cells[cells["status"] == "ok"])
    of_device = cells[cells["device"] == rows["device"].iloc[0]]
    widths = sorted(set(rows["d_model"]))
    for axes, width in zip(canvas.subplots(1, len(widths), squeeze=False, sharey=True)[0], widths, strict=True):
        chosen = rows[rows["d_model"] == width]
        for colour, marker, (dtype, own) in zip(
            f.COLOURS, f.MARKERS, chosen.groupby("dtype", sort=False), strict=False
        ):
            spread = pd.to_numeric(own["samples_per_s_spread"], errors="coerce") / 2
            style = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.2, "capsize": 2}
            x, y = (own[name].astype(float) for name in ("target_length", "samples_per_s"))
            axes.errorbar(x, y, spread, label=dtype, **style)
        axes.set_xscale("log", base=2)
        f.power_of_two_ticks(axes, sorted(set(chosen["target_length"].astype(float))))
        f.mark_statuses(axes, of_device[of_device["d_model"] == width], "target_length")
        axes.margins(x=0.25)
        axes.set_title(f"d_model {width}")
        axes.set_xlabel("Target length")
    canvas.axes[0].set_ylim(bottom=0)
    canvas.axes[0].set_ylabel("Samples/s")
    canvas.axes[0].legend(fontsize="small", loc="lower left")
