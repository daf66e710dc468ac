"""The sentences that answer benchmarking_script's questions."""

from __future__ import annotations

import pandas as pd

from perfscribe.counters.parameters import transformer_parameters
from perfscribe.experiments.end_to_end.predictions import PHASES
from perfscribe.findings import CannotTell, from_to, need, one_setting
from perfscribe.models.shapes import SIZES
from perfscribe.statistics import format_figure

ALLOWED_ERROR = 0.05


def _floats(rows: pd.DataFrame, column: str) -> pd.Series:
    return rows[column].astype(float)


def _within(title: str) -> str:
    """A title inside of a sentence."""
    return title[0].lower() + title[1:]


def sizes(rows: pd.DataFrame) -> str:
    """Times of the smallest and largest size at the longest context that both have, in one dtype on one device."""
    rows, setting = one_setting(need(rows, 3, "cells"), ("dtype", "device", "batch"))
    first, last = rows["size"].iloc[0], list(dict.fromkeys(rows["size"]))[-1]
    common = set(rows[rows["size"] == first]["seq_len"]) & set(rows[rows["size"] == last]["seq_len"])
    if first == last or not common:
        raise CannotTell("two sizes at one context are needed")
    at = rows[rows["seq_len"] == max(common)].set_index("size")
    small, large = at.loc[first], at.loc[last]
    parts = [
        f"{size}: forward {format_figure(float(row['forward_ms']))} ms, backward "
        f"{format_figure(float(row['backward_ms']))} ms "
        f"({float(row['backward_ms']) / float(row['forward_ms']):.2g} times forward)"
        for size, row in ((first, small), (last, large))
    ]
    growth = float(large["full_step_ms"]) / float(small["full_step_ms"])
    tensors = transformer_parameters(SIZES[last]) / transformer_parameters(SIZES[first])
    return (
        f"At context {max(common)} ({setting}), medians: {'; '.join(parts)}. The full step takes {growth:.3g} times as "
        f"long for {tensors:.3g} times the parameters."
    )


def spread(rows: pd.DataFrame) -> str:
    """Standard deviation as a share of the mean, over all cells."""
    need(rows, 3, "cells")
    shares = _floats(rows, "forward_ms_std") / _floats(rows, "forward_ms_mean")
    back = _floats(rows, "backward_ms_std") / _floats(rows, "backward_ms_mean")
    return (
        f"Over {len(rows)} cells the standard deviation is {shares.median():.1%} of the mean in forward (median over "
        f"cells; largest {shares.max():.1%}) and {back.median():.1%} in backward (largest {back.max():.1%})."
    )


def difference(rows: pd.DataFrame) -> str:
    """Backward measured against backward by difference."""
    need(rows, 3, "cells")
    ratio = _floats(rows, "backward_by_difference_ms") / _floats(rows, "backward_ms")
    return (
        f"Backward by difference is {ratio.median():.3g} times backward measured (median over {len(rows)} cells, "
        f"{from_to(ratio, '{:.3g}'.format)}). The difference comes from passes of its own, without a "
        "synchronisation between forward and backward."
    )


def rates(rows: pd.DataFrame) -> str:
    """Highest rate, and utilisation where a peak is known."""
    need(rows, 1, "cells")
    best = rows.loc[_floats(rows, "tflop_per_s").idxmax()]
    text = (
        f"The highest rate is {format_figure(float(best['tflop_per_s']))} TFLOP/s (size {best['size']}, context "
        f"{best['seq_len']}, {best['dtype']})"
    )
    known = rows[rows["mfu_percent"].map(lambda x: isinstance(x, (int, float)))]
    if known.empty:
        return f"{text}; the device's peak is not known, so no utilisation is given."
    top = known.loc[_floats(known, "mfu_percent").idxmax()]
    return (
        f"{text}; the highest utilisation {format_figure(float(top['mfu_percent']))} % of "
        f"{format_figure(float(top['peak_tflop_per_s']))} TFLOP/s (size {top['size']}, context {top['seq_len']}, "
        f"{top['dtype']})."
    )


def memory(rows: pd.DataFrame) -> tuple[str, str]:
    """Largest error of the memory model over phases whose peak reaches a GiB."""
    need(rows, 1, "cells")
    wrong = rows[_floats(rows, "parameters") != _floats(rows, "predicted_parameters")]
    errors = []
    for phase in PHASES:
        large = rows[_floats(rows, f"peak_{phase}_gib") >= 1]
        for _, row in large.iterrows():
            measured, predicted = float(row[f"peak_{phase}_gib"]), float(row[f"predicted_{phase}_gib"])
            errors.append((abs(predicted / measured - 1), predicted / measured - 1, phase, row))
    counted = "as the formula says in every cell" if wrong.empty else f"unlike the formula in {len(wrong)} cells"
    if not errors:
        raise CannotTell(f"no phase peaks at 1 GiB or more (parameters are {counted})")
    _, error, phase, row = max(errors, key=lambda item: item[0])
    text = (
        f"Parameters are {counted}. Of {len(errors)} peaks of 1 GiB and more, the prediction is off by at most "
        f"{error:+.1%} ({_within(PHASES[phase])}, {row['size']}, context {row['seq_len']}, {row['dtype']})."
    )
    if abs(error) <= ALLOWED_ERROR and wrong.empty:
        return text, "confirmed"
    missing = float(row[f"peak_{phase}_gib"]) - float(row[f"predicted_{phase}_gib"])
    side = "more" if missing < 0 else "less"
    return f"{text} There it predicts {format_figure(abs(missing))} GiB {side} than was measured.", "contradicted"
