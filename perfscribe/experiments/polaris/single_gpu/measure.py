"""Training of the Polaris homework's model on one device, for as many epochs as it asks.

Beside the homework's loader, which collates samples one by one, batches drawn at once from the host's memory and from
the device's: what remains is the time of the steps themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfscribe.base.cells import Cell, Measurement


def run(cell: Cell) -> Measurement:
    """Train; the loss is checked afterwards, so that the first epoch is as cold as the homework's."""
    from perfscribe.models.seq2seq_run import measure

    return measure(cell, cold=True)
