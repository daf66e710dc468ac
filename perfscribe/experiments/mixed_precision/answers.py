"""The sentences that answer benchmarking_mixed_precision's questions about time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from perfscribe import references
from perfscribe.experiments.mixed_precision import pairs
from perfscribe.experiments.nsys_profile import busy
from perfscribe.findings import CannotTell, from_to, is_number, need, one_setting, shown
from perfscribe.statistics import format_figure

SETTING = ("device", "seq_len", "batch")
# A speed-up grows with size where the largest model's exceeds the smallest's by more than this.
MARGIN = 0.05


def _chosen(rows: pd.DataFrame, columns: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """The rows of one setting that have a figure in all these columns, and the setting's name."""
    known = rows[rows[list(columns)].map(is_number).all(axis=1)] if len(rows) else rows
    if known.empty:
        raise CannotTell(f"no size has a figure in {' and '.join(name.replace('_', ' ') for name in columns)}")
    chosen, _ = one_setting(known, SETTING)
    first = chosen.iloc[0]
    return chosen, f"context {first['seq_len']}, batch {first['batch']}, {first['device']}"


def _pass(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    return rows[rows["pass_type"] == name].set_index("model_size")


def timings(rows: pd.DataFrame) -> str:
    """Forward and backward of each size in fp32 and bf16."""
    chosen, setting = _chosen(rows, ("fp32_ms", "bf16_ms"))
    forward, backward = _pass(chosen, "forward"), _pass(chosen, "backward")
    parts = []
    for size in forward.index.intersection(backward.index, sort=False):
        words = [
            f"{name} {shown(row, 'fp32_ms')} → {shown(row, 'bf16_ms')} ms ({shown(row, 'bf16_speedup')}×)"
            for name, row in (("forward", forward.loc[size]), ("backward", backward.loc[size]))
        ]
        parts.append(f"{size}: {', '.join(words)}")
    if not parts:
        raise CannotTell("no size has both passes in fp32 and bf16")
    lacking = _lacking(rows, set(forward.index))
    return f"True fp32 → bf16 autocast, medians ({setting}). {'; '.join(parts)}.{lacking}"


def _lacking(rows: pd.DataFrame, told: set[str]) -> str:
    """Sizes that one of the two dtypes lacks, with the word that stands in the table."""
    missing = rows[(rows["pass_type"] == "forward") & ~rows["model_size"].isin(told)]
    words = [
        f"{row['model_size']} ({dtype}: {row[f'{dtype}_ms']})"
        for _, row in missing.iterrows()
        for dtype in ("fp32", "bf16")
        if not is_number(row[f"{dtype}_ms"])
    ]
    return f" Without a pair: {', '.join(words)}." if words else ""


def trend(rows: pd.DataFrame) -> tuple[str, str]:
    """Whether bf16's gain grows with the model, as write-ups say."""
    chosen, setting = _chosen(rows, ("bf16_speedup",))
    sentences, grows = [], []
    for name in ("forward", "backward"):
        gains = need(_pass(chosen, name), 3, f"sizes in fp32 and bf16, {name}")["bf16_speedup"].astype(float)
        listed = ", ".join(f"{gain:.3g} ({size})" for size, gain in gains.items())
        sentences.append(f"{name} {listed}")
        grows.append(gains.iloc[-1] > (1 + MARGIN) * gains.iloc[0])
    text = f"Speed-up of bf16 over true fp32 by size ({setting}): {'; '.join(sentences)}. "
    claim = "Write-ups say that it grows with model size"
    if all(grows):
        return (
            f"{text}{claim}: from the smallest to the largest model measured here it does, in both passes.",
            "confirmed",
        )
    where = " and ".join(name for name, g in zip(("forward", "backward"), grows, strict=True) if not g)
    return (
        f"{text}{claim}: between the smallest and the largest model measured here it does not in {where}.",
        "contradicted",
    )


def _range(values: pd.Series) -> str:
    return from_to(values, "{:.3g}".format)


def tf32(rows: pd.DataFrame) -> str:
    """What TF32 alone gives, and what is then left for bf16."""
    both = rows[rows["pass_type"] == "forward+backward"] if len(rows) else rows
    if len(both) and not both["tf32_ms"].map(is_number).any():
        raise CannotTell("TF32 was not measured here: it is a mode of the matrix units of NVIDIA's GPUs")
    chosen, setting = _chosen(both, ("fp32_ms", "tf32_ms", "bf16_ms"))
    fp32, alone, bf16 = (chosen[f"{dtype}_ms"].astype(float) for dtype in ("fp32", "tf32", "bf16"))
    behind = chosen[bf16 > (1 + MARGIN) * alone]
    bound_by = [busy.what_bounds(row["bf16_busy_percent"], row["tf32_busy_percent"]) for _, row in behind.iterrows()]
    told = {cause: behind[[one == cause for one in bound_by]] for cause in dict.fromkeys(bound_by)}
    slower = _sizes(told.pop(busy.DEVICE, behind[:0]))
    return (
        f"Forward and backward together ({setting}, {len(chosen)} sizes): TF32 alone is {_range(fp32 / alone)} times "
        f"as fast as true fp32. bf16 is {_range(fp32 / bf16)} times as fast as true fp32, but {_range(alone / bf16)} "
        f"times as fast as fp32 with TF32 on{f', and so slower with {slower}' if slower else ''}."
        f"{''.join(_no_verdict(rows, cause) for cause, rows in told.items())} A comparison that does not say "
        f"which fp32 it ran may thus be off by the first factor.{_published_tf32()}"
    )


def _sizes(rows: pd.DataFrame) -> str:
    return ", ".join(map(str, rows["model_size"]))


def _no_verdict(rows: pd.DataFrame, bound_by: str) -> str:
    """The sizes with which bf16 takes longer than TF32, and why that says nothing of the dtypes."""
    *others, last = map(str, rows["model_size"])
    longer = f" With {' and '.join(filter(None, (', '.join(others), last)))}, bf16 takes longer than TF32"
    if bound_by == busy.LAUNCHES:
        return (
            f"{longer}, but kernels fill only {_filled(rows, 'bf16')} (nsys_profile): the host's launches bound these "
            "times, so that they are no verdict on the dtypes."
        )
    if bound_by == busy.SHORTER_LAUNCHES:
        return (
            f"{longer}. Kernels fill only {_filled(rows, 'TF32')} (nsys_profile), so that the host's launches bound "
            "these; the passes in bf16 were not traced: no verdict on the dtypes is drawn."
        )
    return f"{longer}; whether the host's launches bound that was not traced."


def _filled(rows: pd.DataFrame, dtype: str) -> str:
    shares = rows[f"{dtype.lower()}_busy_percent"].astype(float)
    return f"{from_to(shares, '{:.0f}'.format)} % of the passes in {dtype}"


def _published_tf32() -> str:
    """One source's two figures for the same pass, with TF32 and without."""
    levels: dict[str, Any] = {"size": "xl", "seq_len": 512, "batch": 4}
    true = pairs.published_ms("brandon-snider", {**levels, "dtype": "fp32"}, "forward_ms")
    known = references.find(references.load("end_to_end"), "forward_ms", dtype="tf32", warmup_steps=5, **levels)
    with_tf32 = next((one for one in known if one.source == "brandon-snider"), None)
    if true is None or with_tf32 is None or not true.value or not with_tf32.value:
        return ""
    return (
        f" brandon-snider prints {format_figure(with_tf32.value)} ms with TF32 and {format_figure(true.value)} ms "
        f"without for the same forward pass (xl, context 512, H100): {true.value / with_tf32.value:.3g} times."
    )


def published(rows: pd.DataFrame) -> str:
    """How bf16's speed-up compares with the one source that states size, context and batch."""
    column = "bf16_speedup_brandon-snider"
    chosen, setting = _chosen(rows, ("bf16_speedup", column))
    ratio = chosen["bf16_speedup"].astype(float) / chosen[column].astype(float)
    worst = chosen.loc[(ratio - 1).abs().idxmax()]
    return (
        f"Over {len(chosen)} passes that brandon-snider published for the same size, context and batch (H100, true "
        f"fp32; here {setting}), our speed-up of bf16 is {_range(ratio)} times theirs (median {ratio.median():.3g}); "
        f"furthest apart are {worst['model_size']}, {worst['pass_type']}: {float(worst['bf16_speedup']):.3g} here, "
        f"{float(worst[column]):.3g} there."
    )
