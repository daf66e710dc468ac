"""Two ways to do the same work, and how to tell that both are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfscribe.instruments.timing import Mark


def unmarked(_: str) -> None:
    """A mark for passes whose phases nobody times."""


@dataclass(frozen=True)
class Pair:
    """Eager and compiled: each is called with mark(name), which it calls at the end of each phase.

    prepare: comes before every pass, untimed.
    check_eager, check_compiled: errors by name; ValueError where one is too large. check_eager comes first.
    whole: name of the sample that holds a whole pass.
    """

    eager: Callable[[Mark], object]
    compiled: Callable[[Mark], object]
    prepare: Callable[[], object]
    check_eager: Callable[[], dict[str, float]]
    check_compiled: Callable[[], dict[str, float]]
    whole: str
