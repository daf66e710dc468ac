"""Keeps measurements from before a failure: a pass that runs out of memory does not lose earlier numbers."""

from collections.abc import Iterator
from contextlib import contextmanager

from perfscribe.base.cells import Measurement

ATTRIBUTE = "partial_measurement"


@contextmanager
def kept_on_failure(measurement: Measurement) -> Iterator[Measurement]:
    """Attach the measurement so far to any exception that leaves the context; of_error() reads it."""
    try:
        yield measurement
    except Exception as error:
        setattr(error, ATTRIBUTE, measurement)
        raise


def of_error(error: BaseException) -> Measurement | None:
    """Return the measurement that kept_on_failure attached to the exception, unless it is empty."""
    measurement = getattr(error, ATTRIBUTE, None)
    has_figures = isinstance(measurement, Measurement) and (measurement.samples or measurement.values)
    return measurement if has_figures else None
