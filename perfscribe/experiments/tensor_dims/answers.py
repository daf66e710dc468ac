"""The sentences that answer the questions about larger tensors."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe import references
from perfscribe.epoch_columns import main_device
from perfscribe.findings import CannotTell, need, shown
from perfscribe.statistics import format_figure as figure

CLAIMED_LIMIT_GB = 16.0  # write-up 000: "just under the 16GB limit"
A100_GB = 40.0  # of each GPU of Polaris, on which write-up 000 ran (ALCF's guide)
# Width and dtype of its two rows, whose ratio it calls quadratic.
CLAIMED_LOW, CLAIMED_HIGH = (1024, "fp32"), (4096, "bf16")
QUADRATIC = 2
RAN = ("ok", "failed", "oom", "timeout")


def error(frame: pd.DataFrame) -> tuple[str, str]:
    """What features give that d_model does not match, and the same features with d_model to match."""
    need(frame[frame["status"] == "ok"], 1, "cells that train")
    apart = frame[(frame["features"] != frame["d_model"]) & frame["status"].isin(RAN)]
    row = need(main_device(apart), 1, "cells whose features are not d_model").iloc[0]
    alike = frame[
        (frame["d_model"] == row["features"]) & (frame["status"] == "ok") & (frame["device"] == row["device"])
    ]
    right = ""
    if not alike.empty:
        good = alike.iloc[0]
        right = (
            f" With d_model {good['d_model']} it trains: {shown(good, 'samples_per_s')} samples/s in {good['dtype']}, "
            f"peak {figure(good['peak_gib'])} GiB."
        )
    text = (
        f"Samples of {row['features']} features and d_model {row['d_model']}: `{row['status']}`, the model's own "
        f'message being "{row["reason"]}". That is no limit of memory.{right}'
    )
    if row["status"] != "failed":
        return text.replace(" That is no limit of memory.", ""), "contradicted"
    return (
        f"{text} Write-up 001's dtype script prints each such error as out of memory, as it catches any error.",
        "confirmed",
    )


def _peak(rows: pd.DataFrame, **levels: Any) -> float:
    """Peak in GB of the one row of these levels."""
    found = rows
    for factor, level in levels.items():
        found = found[found[factor] == level]
    what = ", ".join(f"{factor} {level}" for factor, level in levels.items())
    return float(need(found, 1, f"cells of {what}")["peak_gb"].iloc[0])


def controls(rows: pd.DataFrame, asked: pd.DataFrame) -> tuple[str, str]:
    """What width, dtype and number of samples do to the peak, each by itself."""
    rows = need(main_device(rows), 1, "cells")
    rows = rows[rows["d_model"].isin(rows[rows["weights"] == "bf16"]["d_model"])]
    need(rows, 1, "widths in both dtypes")
    low, high = min(rows["d_model"]), max(rows["d_model"])
    few, many = min(rows["samples"]), max(rows["samples"])
    if low == high or few == many:
        raise CannotTell("two widths and two numbers of samples are needed")
    fp32, bf16 = {"dtype": "fp32", "weights": "fp32"}, {"dtype": "bf16", "weights": "bf16"}
    by_width = _peak(rows, d_model=high, samples=few, **fp32) / _peak(rows, d_model=low, samples=few, **fp32)
    by_dtype = _peak(rows, d_model=high, samples=few, **bf16) / _peak(rows, d_model=high, samples=few, **fp32)
    by_samples = _peak(rows, d_model=high, samples=many, **bf16) / _peak(rows, d_model=high, samples=few, **bf16)
    together = by_width * by_dtype * by_samples
    parameters = _parameters(asked, high) / _parameters(asked, low)
    text = (
        f"From d_model {low} to {high} alone, in fp32, the peak grows {figure(by_width)} times, for "
        f"{figure(parameters)} times the parameters; a quadratic law would make it "
        f"{figure((high / low) ** QUADRATIC)} times, but the inner width of the feed-forward layers stays. The whole "
        f"model in bf16 in place of fp32, at {high}, takes {figure(by_dtype)} times as much"
        f"{_autocast(rows, high, few)}. {many} in place of {few} samples change it {figure(by_samples)} "
        f"times{_samples_lie(rows)}. Together {figure(together)} times. Write-up 000's roughly 4 "
        f"({_claimed(*CLAIMED_HIGH)} against {_claimed(*CLAIMED_LOW)} GB) mixes the three."
    )
    return text, "contradicted" if (low, high) == (CLAIMED_LOW[0], CLAIMED_HIGH[0]) else "answered"


def _claimed(width: int, dtype: str) -> str:
    """Write-up 000's peak in GB, as it prints it."""
    known = [*references.load("tensor_dims"), *references.load("dtypes")]
    (found,) = references.find(known, "peak_memory_gb", d_model=width, dtype=dtype)
    return found.text


def _parameters(asked: pd.DataFrame, width: int) -> float:
    found = asked[(asked["status"] == "ok") & (asked["d_model"] == width)]
    return float(need(found, 1, f"cells of width {width}")["parameters"].iloc[0])


def _autocast(rows: pd.DataFrame, width: int, samples: int) -> str:
    try:
        cast = _peak(rows, d_model=width, samples=samples, dtype="bf16", weights="fp32")
    except CannotTell:
        return ""
    whole = _peak(rows, d_model=width, samples=samples, dtype="fp32", weights="fp32")
    return f", autocast {figure(cast / whole)} times: its weights, gradients and Adam state stay in fp32"


def _samples_lie(rows: pd.DataFrame) -> str:
    """On a CPU the samples lie in the memory that is counted."""
    return "" if rows["device"].iloc[0] == "cuda" else " (here they lie in the same memory)"


def limit(memory: pd.DataFrame, scale: pd.DataFrame) -> tuple[str, str]:
    """Whether fp32 fits at write-up 000's width, measured or, where it was not, predicted."""
    need(scale[scale["status"] == "ok"], 1, "cells")
    full = _wide(memory, "fp32")
    half = _wide(memory, "bf16")
    measured = full["status"] == "ok"
    full_gb = _peak_gb(scale, full) if measured else float(full["predicted_gb"])
    how = "peaks at" if measured else "was not measured here; the prediction is"
    half_text = f"{figure(_peak_gb(scale, half))} GB measured" if half["status"] == "ok" else "not measured here"
    fits = full_gb < A100_GB
    text = (
        f"In fp32 d_model {full['d_model']} {how} {figure(full_gb)} GB (10^9): parameters, gradients and Adam state, "
        f"and {figure(_gb(_of(full, 'temporaries_gib')))} GB of Adam's temporaries. The A100 of Polaris has "
        f"{figure(A100_GB)} GB, so fp32 {'fits' if fits else 'does not fit'}; a limit of {figure(CLAIMED_LIMIT_GB)} GB "
        f"is not that machine's. In bf16 as a whole it is {half_text}, {figure(half['predicted_gb'])} GB predicted, "
        f"{figure(_gb(_of(half, 'with_ddp_gib')))} GB ({figure(half['with_ddp_gib'])} GiB) with the copy of the "
        f"gradients that DDP holds; write-up 000 prints {_claimed(*CLAIMED_HIGH)} GB and does not say of which kind. "
        "The whole model in bf16 halves every number that is held; autocast halves none of the weights, gradients and "
        "Adam state."
    )
    return text, "contradicted" if fits else "confirmed"


def _gb(gib: float) -> float:
    return gib * 2**30 / 1e9


def _of(row: Any, column: str) -> float:
    return float(row[column])


def _wide(memory: pd.DataFrame, weights: str) -> Any:
    """The row of the claimed width, one that was measured where there is one."""
    found = memory[
        (memory["d_model"] == CLAIMED_HIGH[0]) & (memory["weights"] == weights) & (memory["dtype"] == weights)
    ]
    found = need(found, 1, f"cells of d_model {CLAIMED_HIGH[0]} in {weights}, measured or planned")
    done = found[found["status"] == "ok"]
    return (found if done.empty else done).iloc[0]


def _peak_gb(scale: pd.DataFrame, row: Any) -> float:
    found = scale[scale["status"] == "ok"]
    return _peak(found, **{name: row[name] for name in ("device", "d_model", "dtype", "weights", "samples")})
