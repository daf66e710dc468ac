"""Kinds of errors: why a cell has no figures, as its record keeps it (provenance.error.kind)."""

UNSUPPORTED = "unsupported"  # the machine lacks what the cell needs
TOO_FEW = "too_few"  # fewer GPUs or nodes than the cell needs
HELD_BACK = "held_back"  # the self-test that the cell waits for failed
OUT_OF_MEMORY = "out_of_memory"
TIMEOUT = "timeout"
DIED = "died"  # the measuring process ended or does not answer any more
WRONG_RESULT = "wrong_result"  # a result differs from its reference
EXPECTED = "expected"  # the homework asks for this failure
EXCEPTION = "exception"  # any other

_ATTRIBUTE = "is_expected"


def mark_expected(error: BaseException) -> None:
    """Mark an exception whose failed cell is what the homework asks for."""
    setattr(error, _ATTRIBUTE, True)


def is_expected(error: BaseException) -> bool:
    """Return whether mark_expected() marked the exception."""
    return bool(getattr(error, _ATTRIBUTE, False))
