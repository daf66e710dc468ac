"""Measures training of the Polaris homework's model on wider tensors.

Widths with matching d_model: in fp32, with the whole model in bf16, and by autocast; some also with more samples. In
addition, features that grow while d_model stays: the model refuses features that differ from d_model, and that cell
fails with the model's own message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfscribe.base.cells import Cell, Measurement


def run(cell: Cell) -> Measurement:
    """Check the loss, then train; the model raises RuntimeError, as expected, if the features differ from its width."""
    from perfscribe.base import error_kinds
    from perfscribe.models.seq2seq_run import measure
    from perfscribe.models.seq2seq_training import Job

    try:
        return measure(cell)
    except RuntimeError as error:
        job = cell.read(Job)
        if job.features != job.d_model:
            error_kinds.mark_expected(error)
        raise
