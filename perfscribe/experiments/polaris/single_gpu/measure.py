"""Measures training of the Polaris homework's model on one device, for as many epochs as it asks.

The homework's loader collates samples one by one; in comparison, batches are drawn at once from host memory and from
device memory, which leaves the time of the steps themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfscribe.base.cells import Cell, Measurement


def run(cell: Cell) -> Measurement:
    """Train, then check the loss: an earlier check would warm up the first epoch, which is cold in the homework."""
    from perfscribe.models.seq2seq_run import measure

    return measure(cell, cold=True)
