"""What a cell that trains on several processes requires of the engine. Alone, so that measuring code may import it."""

from __future__ import annotations


def self_tested(backend: str, world_size: int) -> tuple[str, ...]:
    """A self-test of as many processes before it starts (engine: gate.py); a world of one is not tested."""
    return (f"preflight:{backend}:{world_size}",) if world_size > 1 else ()
