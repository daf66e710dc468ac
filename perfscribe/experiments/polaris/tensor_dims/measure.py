"""Training of the Polaris homework's model on wider tensors.

Widths with d_model to match, in fp32, with the whole model in bf16, and by autocast; more samples of some of them; and
features beside a d_model that stays as it was: where the two differ the model refuses, and that cell fails with the
model's own message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfscribe.base.cells import Cell, Measurement


def run(cell: Cell) -> Measurement:
    """Check the loss, then train; RuntimeError of the model where its width is not the features'."""
    from perfscribe.models.seq2seq_run import measure

    return measure(cell)
