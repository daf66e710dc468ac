"""Tables and answers of benchmarking_mixed_precision, parts a and b."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.findings import CannotTell, Finding, find, need
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = ("cs336.autocast_dtypes", "cs336.layernorm_variance")
FIGURES = ("cs336.layernorm_variance",)
PARTS = {
    "parameters_dtype": "Parameters",
    "fc1_output_dtype": "Output of fc1",
    "layernorm_output_dtype": "Output of LayerNorm",
    "logits_dtype": "Logits",
    "loss_dtype": "Loss",
    "gradients_dtype": "Gradients",
}
VARIANCE_VALUES = {
    "inputs_variance": "Variance of the rounded input",
    "variance_two_pass_relative_error": "Error, E[(x − mean)²]",
    "variance_moments_relative_error": "Error, E[x²] − E[x]²",
    "variance_pairwise_relative_error": "Error, pairwise sums",
    "layer_norm_relative_error": "Error of torch's layer_norm",
}
VARIANCE_TITLE = "LayerNorm's statistics in one dtype, against float64"
DTYPE_NOTE = (
    "Read off the tensors by hooks. The published dtypes are of CUDA's autocast, which keeps LayerNorm in fp32; "
    "autocast on a CPU has another list of operations."
)
VARIANCE_NOTE = (
    "Relative errors against float64 of the same rounded inputs, median over the rows; sums from left to right, or "
    "pairwise, with every intermediate in the dtype. Deterministic for a seed: no spread."
)


def _published(metric: str) -> Callable[[Record], str]:
    """What the write-ups print for the same dtype, `differ` where they disagree."""
    from perfscribe import references

    known = references.load("autocast_dtypes")

    def get(record: Record) -> str:
        dtype = record.factors["dtype"]
        found = {
            ref.text.removeprefix("torch.") for ref in known if ref.metric == metric and ref.factors["dtype"] == dtype
        }
        return found.pop() if len(found) == 1 else "differ" if found else "none"

    return get


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The six dtypes, a row a device and autocast dtype; errors of the variance, a row a dtype and mean."""
    cells = records["autocast_dtypes"]
    dtype_columns = [t.factor("dtype", "Autocast"), t.factor("device", "Device")]
    for name, title in PARTS.items():
        dtype_columns.append(t.value(name, title, exact=True))
        dtype_columns.append(t.Column(f"published_{name}", f"{title}, published", _published(name), kind="published"))
    variance_columns = [
        t.factor("dtype", "Dtype"),
        t.factor("device", "Device"),
        t.factor("variance_mean", "Mean of the input"),
        t.factor("variance_std", "Standard deviation"),
        t.factor("features", "Features"),
        *(t.value(name, title) for name, title in VARIANCE_VALUES.items()),
    ]
    dtypes = [record for record in cells if record.factors["part"] == "dtypes"]
    variances = [record for record in cells if record.factors["part"] == "variance"]
    return [
        t.make(TABLES[0], "Dtypes of the toy model under autocast", dtypes, dtype_columns, [DTYPE_NOTE]),
        t.make(
            TABLES[1],
            "LayerNorm's statistics in one dtype, against float64",
            variances,
            variance_columns,
            [VARIANCE_NOTE],
        ),
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """The six dtypes in words, and whether LayerNorm needs care in fp16 and in bf16."""
    dtypes, variances = tables[TABLES[0]].ok, tables[TABLES[1]].ok
    return [
        find("cs336.autocast_dtypes", TABLES[:1], lambda: _dtypes_in_words(dtypes)),
        find("cs336.layernorm", TABLES[1:], lambda: _layernorm_in_words(variances)),
    ]


def _dtypes_in_words(rows: pd.DataFrame) -> tuple[str, str]:
    sentences, verdicts = [], []
    for _, row in need(rows, 1, "autocast dtypes").iterrows():
        parts = ", ".join(f"{title[0].lower()}{title[1:]} {row[name]}" for name, title in PARTS.items())
        text = f"Under {row['dtype']} autocast on {row['device']}: {parts}"
        if row["device"] == "cuda" and row["published_loss_dtype"] != "none":
            unlike = [title for name, title in PARTS.items() if row[f"published_{name}"] not in ("differ", row[name])]
            verdicts.append(not unlike)
            text += f"; published otherwise: {', '.join(unlike)}" if unlike else "; as published"
        sentences.append(text + ".")
    if not verdicts:
        return " ".join(sentences), "answered"
    return " ".join(sentences), "confirmed" if all(verdicts) else "contradicted"


def _worst(rows: pd.DataFrame, dtype: str, column: str) -> tuple[float, Any, Any]:
    """Largest finite error of a dtype, the mean at which it is met, and the smallest mean that overflows (or None)."""
    chosen = rows[rows["dtype"] == dtype]
    numbers = chosen[chosen[column].map(lambda x: isinstance(x, (int, float)))]
    overflowing = chosen[chosen[column] == "overflow"]["variance_mean"]
    if numbers.empty:
        raise CannotTell(f"no finite error in {dtype}")
    at = numbers[column].astype(float).idxmax()
    return float(numbers.loc[at, column]), numbers.loc[at, "variance_mean"], min(overflowing, default=None)


def _layernorm_in_words(rows: pd.DataFrame) -> str:
    column = "variance_two_pass_relative_error"
    need(rows, 3, "variance cells")
    sentences = []
    for dtype in ("fp16", "bf16", "fp32"):
        error, mean, overflow = _worst(rows, dtype, column)
        text = f"in {dtype} the variance is off by up to {error:.2g} (relative, at mean {mean})"
        if overflow is not None:
            text += f" and overflows from a mean of {overflow} on"
        sentences.append(text)
    own, _, _ = _worst(rows, "bf16", "layer_norm_relative_error")
    naive, _, _ = _worst(rows, "bf16", column)
    pairwise, _, _ = _worst(rows, "bf16", "variance_pairwise_relative_error")
    return (
        "Summing left to right with every intermediate in one dtype, " + "; ".join(sentences) + f". In bf16, which has "
        f"the range of fp32, sums over a binary tree lower the largest error from {naive:.2g} to {pairwise:.2g}, so "
        f"that it is the accumulation that needs care there; torch's own layer_norm is off by at most {own:.2g}."
    )


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Error of the variance over the inputs' mean, one line a dtype."""
    rows = tables[TABLES[1]].ok
    column = "variance_two_pass_relative_error"

    def draw(canvas: Any) -> None:
        axes = canvas.subplots()
        finite = rows[rows[column].map(lambda x: isinstance(x, (int, float)) and x > 0)]
        if finite.empty:
            f.no_data(axes, "no variance cell was measured")
            return
        f.lines(
            axes, finite.assign(x=finite["variance_mean"].astype(float) + 1), "x", column, ["dtype", "device"], _label
        )
        axes.set_xscale("log")
        axes.set_xlabel("Mean of the inputs + 1 (in standard deviations)")
        axes.set_ylabel("Relative error of the variance")

    caption = (
        "Relative error of the variance of LayerNorm's inputs, computed in one dtype throughout, against float64; "
        "a line ends where the sum overflows or the rounded inputs are constant."
    )
    return [f.Figure(FIGURES[0], caption, draw)]


def _label(level: Any) -> str:
    return " on ".join(map(str, level))
