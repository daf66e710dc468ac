"""What roofline shows."""

from perfscribe.base.registry import Shown

SHOWN = Shown(
    tables=("cs336.roofline",),
    figures=("cs336.roofline",),
    reads=("attention",),
    reads_if_measured=("calibration", "end_to_end", "flash_benchmarking"),
)
