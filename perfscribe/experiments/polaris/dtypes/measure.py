"""Measures training of the Polaris homework's model in fp32, fp16 (with a loss scaler) and bf16, over length and width.

fp16 and bf16 are autocast with fp32 weights, as in the homework's scripts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfscribe.base.cells import Cell, Measurement


def run(cell: Cell) -> Measurement:
    """Check the loss, then train."""
    from perfscribe.models.seq2seq_run import measure

    return measure(cell)
