"""Amdahl's and Gustafson's laws, and the serial fraction that measured steps have by them.

Strong scaling (Amdahl 1967): T(n) = T(1) (f + (1 - f)/n); f from two counts is the metric of Karp and Flatt 1990.
Weak scaling (Gustafson 1988): scaled speed-up n - s (n - 1), so that E(n) = 1 - s (n - 1)/n. Both take what does not
divide for a constant share: neither knows of communication that grows with ranks.
"""

from __future__ import annotations


def serial_fraction_strong(base_ranks: int, base_ms: float, ranks: int, step_ms: float) -> float | None:
    """Karp and Flatt's metric of two steps of the same work, for one base rank (1/S - 1/n)/(1 - 1/n).

    Below 0: more than linear; above 1: slower than the base. None where no fraction gives such a ratio.
    """
    ratio = _ratio(base_ranks, base_ms, ranks, step_ms)
    below = ratio * (1 - 1 / base_ranks) - (1 - 1 / ranks)
    return None if below >= 0 else (1 / ranks - ratio / base_ranks) / below


def serial_fraction_weak(base_ranks: int, base_ms: float, ranks: int, step_ms: float) -> float | None:
    """Gustafson's fraction of two steps of the same work a rank; None where no fraction gives such a ratio."""
    kept = 1 / _ratio(base_ranks, base_ms, ranks, step_ms)
    below = (1 - 1 / ranks) - kept * (1 - 1 / base_ranks)
    return None if below <= 0 else (1 - kept) / below


def amdahl_efficiency(fraction: float, ranks: int) -> float:
    """Speed-up over ranks, of the same work."""
    return 1 / (fraction * ranks + 1 - fraction)


def gustafson_efficiency(fraction: float, ranks: int) -> float:
    """Scaled speed-up over ranks."""
    return 1 - fraction * (ranks - 1) / ranks


def _ratio(base_ranks: int, base_ms: float, ranks: int, step_ms: float) -> float:
    if not 1 <= base_ranks < ranks or not min(base_ms, step_ms) > 0:
        told = f"{base_ms} ms on {base_ranks}, {step_ms} ms on {ranks} ranks"
        raise ValueError(f"{told}: expected more ranks, times above 0")
    return step_ms / base_ms
