"""The sentences that answer pytorch_attention's questions, and the memory accounting of one cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from perfscribe import tables as t
from perfscribe.counters import attention_memory as model
from perfscribe.counters.ledger import Items
from perfscribe.findings import CannotTell, need, one_setting
from perfscribe.records import Record
from perfscribe.statistics import fit_power, format_figure
from perfscribe.tables import GIB, MIB, Table

# A prediction further off than this, for peaks of at least GIB, has to name what it lacks.
ALLOWED_ERROR = 0.05
SETTING = ("dtype", "device", "batch")
# Points further than this from the fitted line make its exponent meaningless.
NO_POWER_LAW = 0.5


def attention_call(factors: Mapping[str, Any]) -> model.AttentionCall:
    """What the memory model is asked about, from a cell's factors."""
    return model.AttentionCall(
        batch=factors["batch"],
        seq_len=factors["seq_len"],
        head_dim=factors["head_dim"],
        element_bytes=2 if factors["dtype"] in ("bf16", "fp16") else 4,
        cublas_handles=2 if factors["device"] == "cuda" else 0,
        device=factors["device"],
    )


def predicted_items(factors: Mapping[str, Any]) -> dict[str, Items]:
    """Bytes by item that the memory model expects of a cell before backward, and at the peak of backward."""
    call = attention_call(factors)
    return {"before_backward": model.before_backward(call), "peak": model.backward_peak(call)}


def _cell_to_account(cells: Sequence[Record]) -> Record | None:
    """The smallest cell that ran out of memory, else the largest that ran."""

    def work(record: Record) -> int:
        return int(record.factors["seq_len"]) ** 2 * int(record.factors["head_dim"])

    out = [record for record in cells if record.status == "oom"]
    if out:
        return min(out, key=work)
    return max((record for record in cells if record.ok), key=work, default=None)


def _predicted_record(item: str, values: dict[str, int]) -> Record:
    return Record("attention", {"item": item}, "ok", "", "predicted", values=values)


def accounting(table_id: str, cells: Sequence[Record]) -> Table:
    """Where the memory of one cell goes before backward and at the peak: a row an item of the memory model."""
    chosen = _cell_to_account(cells)
    title = "Memory accounting of the smallest cell that runs out of memory, or else the largest that runs"
    columns = [
        t.factor("item", "Item"),
        t.derived("before_backward_mib", "Before backward (MiB)", lambda r: r.values["before_backward"] / MIB),
        t.derived("peak_mib", "At the peak of backward (MiB)", lambda r: r.values["peak"] / MIB),
    ]
    if chosen is None:
        return t.make(table_id, title, [], columns, ["No cell ran and none ran out of memory."])
    f = chosen.factors
    moments = predicted_items(f)
    items = list(dict.fromkeys(name for parts in moments.values() for name in parts))
    rows = [_predicted_record(item, {when: parts.get(item, 0) for when, parts in moments.items()}) for item in items]
    totals = {moment: sum(parts.values()) for moment, parts in moments.items()}
    rows.append(_predicted_record("total", totals))
    cell = f"Cell: sequence length {f['seq_len']}, d_model {f['head_dim']}, {f['dtype']} on {f['device']}."
    return t.make(table_id, title, rows, columns, [cell, "Origin: predicted, by counting the tensors alive."])


def _one_width(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the widest head, sorted by length: a curve over N alone."""
    widest = rows[rows["head_dim"] == rows["head_dim"].max()]
    return widest.sort_values("seq_len", kind="stable")


def exponents(rows: pd.DataFrame) -> str:
    """Fitted exponents of time and memory in N, over the longest lengths."""
    chosen, setting = one_setting(rows, SETTING)
    curve = _one_width(need(chosen, 3, "sequence lengths")).tail(3)
    lengths = [float(n) for n in curve["seq_len"]]
    parts = []
    for column, name in (
        ("forward_ms", "forward time"),
        ("backward_ms", "backward time"),
        ("memory_before_backward_gib", "memory before backward"),
    ):
        fit = fit_power(lengths, [float(y) for y in curve[column]])
        if fit is None:
            raise CannotTell("an exponent needs three sequence lengths of one width")
        worst = max(abs(residual) for residual in fit.residuals)
        if worst > NO_POWER_LAW:
            raise CannotTell(f"{name} follows no power of N here (points are off by up to {worst:.0%})")
        parts.append(
            f"{name} as N^{fit.exponent:.2f} (standard error {fit.standard_error:.2f}, points within {worst:.0%})"
        )
    return (
        f"Over N = {lengths[0]:.0f} to {lengths[-1]:.0f} at d_model {curve['head_dim'].iloc[0]} ({setting}), fitted in "
        "log-log, " + "; ".join(parts) + ". An N × N matrix alone would give N²."
    )


def _largest(rows: pd.DataFrame) -> pd.Series:
    """The row of the longest sequence at the widest head."""
    return need(rows, 1, "cells").sort_values(["seq_len", "head_dim"]).iloc[-1]


def _call(row: pd.Series) -> model.AttentionCall:
    return attention_call({name: row[name] for name in ("batch", "seq_len", "head_dim", "dtype", "device")})


def matrix_share(rows: pd.DataFrame) -> str:
    """Share of one N x N matrix in the memory before backward, at the largest cell."""
    last = _largest(rows)
    call, measured_gib = _call(last), float(last["memory_before_backward_gib"])
    one_gib = call.matrix_bytes / GIB
    return (
        f"At N = {call.seq_len} the {call.batch} N × N matrices of a batch take {call.batch} · {call.seq_len}² · "
        f"{call.element_bytes} B = {format_figure(one_gib)} GiB, {one_gib / measured_gib:.0%} of the "
        f"{format_figure(measured_gib)} GiB in use before backward: of the two that a forward pass allocates, the "
        "softmax, which backward needs."
    )


def remedy(rows: pd.DataFrame) -> str:
    """What would remove the N x N cost, with the figure that it would leave."""
    last = _largest(rows)
    call, measured_mib = _call(last), float(last["memory_before_backward_gib"]) * 1024
    log_sum_exp_bytes = 4 * call.batch * call.seq_len
    kept_mib = (5 * call.tensor_bytes + log_sum_exp_bytes) / MIB
    return (
        "Computing the softmax again in backward, tile by tile, keeps no N × N matrix (FlashAttention, Dao et al. "
        f"2022): q, k, v, output, its gradient and a log-sum-exp a row are {format_figure(kept_mib)} MiB at "
        f"N = {call.seq_len}, d_model {call.head_dim}; measured here are {format_figure(measured_mib)} MiB, "
        f"{measured_mib / kept_mib:.3g} times as much."
    )


def prediction(rows: pd.DataFrame) -> tuple[str, str]:
    """How far the memory model is off where peaks reach a GiB."""
    large = rows[rows["peak_allocated_gib"].astype(float) >= 1]
    if large.empty:
        raise CannotTell("no cell peaks at 1 GiB or more")
    errors = large["predicted_peak_gib"].astype(float) / large["peak_allocated_gib"].astype(float) - 1
    worst = errors.abs().idxmax()
    if not errors[worst]:
        return (
            f"Of all {len(large)} cells that peak at 1 GiB or more, the memory model gives the peak exactly.",
            "confirmed",
        )
    text = (
        f"Of {len(large)} cells that peak at 1 GiB or more, the memory model is off by at most "
        f"{errors[worst]:+.1%} (N = {large.loc[worst, 'seq_len']}, d_model {large.loc[worst, 'head_dim']})."
    )
    if abs(errors[worst]) <= ALLOWED_ERROR:
        return text, "confirmed"
    missing = float(large.loc[worst, "peak_allocated_gib"]) - float(large.loc[worst, "predicted_peak_gib"])
    matrices = missing * GIB / _call(large.loc[worst]).matrix_bytes
    side = "more" if missing < 0 else "less"
    text += f" It predicts {format_figure(abs(missing))} GiB {side} than was measured, {matrices:+.2f} N × N matrices."
    return text, "contradicted"


def out_of_memory(frame: pd.DataFrame) -> str:
    """Which cells ran out of memory."""
    tried = frame[frame["status"].isin(["ok", "oom"])]
    need(tried, 1, "cells")
    out = tried[tried["status"] == "oom"]
    if out.empty:
        longest = int(tried["seq_len"].max())
        return f"None of the {len(tried)} cells that ran here, up to a sequence length of {longest}, ran out of memory."
    first = out.sort_values(["seq_len", "head_dim"]).iloc[0]
    return (
        f"{len(out)} of {len(tried)} cells ran out of memory, the smallest at sequence length {first['seq_len']}, "
        f"d_model {first['head_dim']}: {first['reason']}."
    )
