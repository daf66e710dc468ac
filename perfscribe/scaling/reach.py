"""Which numbers of ranks are predicted, and how far from what was measured a prediction lies."""

from __future__ import annotations

from collections.abc import Collection

MOST_RANKS = 1024
FACTOR = 8  # beyond as many times the largest measured count nothing but the model speaks
MEASURED, PREDICTED, MODEL_ONLY = "measured", "predicted", "model only"


def counts(measured: Collection[int] = (), least: int = 1) -> list[int]:
    """Powers of two up to MOST_RANKS and what was measured beside them, ascending, none below `least`."""
    doubled = {2**power for power in range(MOST_RANKS.bit_length())}
    return sorted(ranks for ranks in doubled | set(measured) if ranks >= least)


def reach(ranks: int, measured: Collection[int]) -> str:
    """measured, predicted, or model only: beyond FACTOR times the largest measured count, or where there is none."""
    if ranks in measured:
        return MEASURED
    return PREDICTED if measured and ranks <= FACTOR * max(measured) else MODEL_ONLY
