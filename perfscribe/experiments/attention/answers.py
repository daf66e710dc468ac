"""The sentences that answer pytorch_attention's questions, and the memory accounting of one cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from perfscribe import tables as t
from perfscribe.counters import attention_memory as model
from perfscribe.counters.ledger import Items
from perfscribe.findings import CannotTell, need
from perfscribe.records import Record
from perfscribe.statistics import fit_power, format_figure
from perfscribe.tables import GIB, MIB, Table

# A prediction further off than this, for peaks of at least GIB, has to name what it lacks.
ALLOWED_ERROR = 0.05
# Points further than this from the fitted line make its exponent meaningless.
NO_POWER_LAW = 0.5


def predicted_items(factors: Mapping[str, Any]) -> dict[str, Items]:
    """Bytes by item that the memory model expects of a cell before backward, and at the peak of backward."""
    call = model.AttentionCall(
        batch=factors["batch"],
        seq_len=factors["seq_len"],
        head_dim=factors["head_dim"],
        element_bytes=2 if factors["dtype"] in ("bf16", "fp16") else 4,
        cublas_handles=2 if factors["device"] == "cuda" else 0,
        device=factors["device"],
    )
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
    return widest.sort_values("seq_len")


def exponents(rows: pd.DataFrame) -> str:
    """Fitted exponents of time and memory in N, over the longest lengths."""
    curve = _one_width(need(rows, 3, "sequence lengths")).tail(3)
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
        f"Over N = {lengths[0]:.0f} to {lengths[-1]:.0f} at d_model {curve['head_dim'].iloc[0]}, fitted in log-log, "
        + "; ".join(parts)
        + ". Time and memory of an N × N matrix grow as N²; what does not depend on N flattens the short end."
    )


def matrix_share(rows: pd.DataFrame, accounting_rows: pd.DataFrame) -> str:
    """Share of one N x N matrix in the memory before backward, at the largest cell."""
    need(rows, 1, "cells")
    last = rows.sort_values(["seq_len", "head_dim"]).iloc[-1]
    n, dtype = int(last["seq_len"]), str(last["dtype"])
    element_bytes = 2 if dtype in ("bf16", "fp16") else 4
    one_gib = 8 * n * n * element_bytes / GIB
    measured = float(last["memory_before_backward_gib"])
    return (
        f"At N = {n} one batch of N × N matrices takes 8 · {n}² · {element_bytes} B = {one_gib:.3g} GiB, which is "
        f"{one_gib / measured:.0%} of the {measured:.3g} GiB in use before backward: the softmax that backward needs. "
        f"An implementation that also keeps the scores holds two."
    )


def remedy(rows: pd.DataFrame) -> str:
    """What would remove the N x N cost, with the figure that it would leave."""
    need(rows, 1, "cells")
    last = rows.sort_values(["seq_len", "head_dim"]).iloc[-1]
    n, width = int(last["seq_len"]), int(last["head_dim"])
    element_bytes = 2 if str(last["dtype"]) in ("bf16", "fp16") else 4
    kept_mib = (5 * 8 * n * width * element_bytes + 8 * n * 4) / MIB
    measured_mib = float(last["memory_before_backward_gib"]) * 1024
    return (
        "Recomputing the softmax tile by tile in backward (FlashAttention) keeps no N × N matrix: inputs, output, the "
        f"output's gradient and one log-sum-exp a row are {kept_mib:.3g} MiB at N = {n}, d_model {width}, against "
        f"{measured_mib:.3g} MiB measured here, {measured_mib / kept_mib:.3g} times as much."
    )


def prediction(rows: pd.DataFrame) -> tuple[str, str]:
    """How far the memory model is off where peaks reach a GiB."""
    large = rows[rows["peak_allocated_gib"].astype(float) >= 1]
    if large.empty:
        raise CannotTell("no cell peaks at 1 GiB or more")
    errors = large["predicted_peak_gib"].astype(float) / large["peak_allocated_gib"].astype(float) - 1
    worst = errors.abs().idxmax()
    text = (
        f"Of {len(large)} cells that peak at 1 GiB or more, the memory model is off by at most "
        f"{errors[worst]:+.1%} (N = {large.loc[worst, 'seq_len']}, d_model {large.loc[worst, 'head_dim']})."
    )
    if abs(errors[worst]) <= ALLOWED_ERROR:
        return text, "confirmed"
    missing = float(large.loc[worst, "peak_allocated_gib"]) - float(large.loc[worst, "predicted_peak_gib"])
    return f"{text} It lacks {format_figure(missing)} GiB there, unaccounted for.", "contradicted"


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
