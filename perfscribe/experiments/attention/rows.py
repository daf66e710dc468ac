"""What the memory model expects of attention's cells, and its accounting of one cell, item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfscribe.analytic import attention_memory as model
from perfscribe.analytic.ledger import Items
from perfscribe.records.records import Record

MOMENTS = ("before_backward", "peak")


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
    return dict(zip(MOMENTS, (model.before_backward(call), model.backward_peak(call)), strict=True))


def _work(record: Record) -> int:
    return int(record.factors["seq_len"]) ** 2 * int(record.factors["head_dim"])


def cell_to_account(cells: Sequence[Record]) -> Record | None:
    """The smallest cell that ran out of memory, else the largest that ran."""
    out = [record for record in cells if record.status == "oom"]
    if out:
        return min(out, key=_work)
    return max((record for record in cells if record.ok), key=_work, default=None)


def accounting(cell: Record) -> list[Record]:
    """One record an item of the memory model, and one of their total."""
    moments = predicted_items(cell.factors)
    items = dict.fromkeys(name for parts in moments.values() for name in parts)
    by_item = {item: {moment: parts.get(item, 0) for moment, parts in moments.items()} for item in items}
    by_item["total"] = {moment: sum(parts.values()) for moment, parts in moments.items()}
    return [Record("attention", {"item": item}, "ok", "", "predicted", values=held) for item, held in by_item.items()]
