"""What checkpoints take on disk. No torch."""

from __future__ import annotations

STATE_BYTES = 12  # of a parameter: its fp32 weight and AdamW's two moments


def needed_bytes(parameters: int, keep: int) -> int:
    """What `keep` checkpoints and the one that is being written take on disk."""
    return STATE_BYTES * parameters * (keep + 1)
