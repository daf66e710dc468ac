"""What a cell had measured before it failed: a pass that runs out of memory takes no earlier figures along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from perfscribe.base.cells import Measurement

ATTRIBUTE = "partial_measurement"


@contextmanager
def kept_on_failure(measurement: Measurement) -> Iterator[Measurement]:
    """Hang the measurement, as far as it got, on whatever exception leaves the context; found by of_error()."""
    try:
        yield measurement
    except Exception as error:
        setattr(error, ATTRIBUTE, measurement)
        raise


def of_error(error: BaseException) -> Measurement | None:
    """The measurement that kept_on_failure hung on the exception, where it holds anything."""
    found = getattr(error, ATTRIBUTE, None)
    has_figures = isinstance(found, Measurement) and (found.samples or found.values)
    return found if has_figures else None
