"""What checkpoints take on disk. No torch."""

from __future__ import annotations

WEIGHT_BYTES = 4  # of a parameter, which is kept in fp32
STATE_BYTES = 3 * WEIGHT_BYTES  # of a parameter: its weight and AdamW's two moments
# Room for the rest of a checkpoint, a guess from above: the head of each tensor's part on each rank, the index of all
# parts, random states, scheduler.
PIECES_BYTES = 64 * 2**20


def predicted_bytes(parameters: int, written_again: int = 0) -> int:
    """A checkpoint's tensors in bytes. written_again: elements of tied matrices that lie there under another name."""
    return STATE_BYTES * parameters + WEIGHT_BYTES * written_again


def needed_bytes(parameters: int, keep: int, written_again: int = 0) -> int:
    """What `keep` checkpoints and the one that is being written take on disk at most, in bytes."""
    return (predicted_bytes(parameters, written_again) + PIECES_BYTES) * (keep + 1)
