"""What mixed_precision shows."""

from perfscribe.base.registry import Shown

SHOWN = Shown(
    tables=("cs336.mixed_precision_passes", "cs336.mixed_precision_speedup"),
    figures=("cs336.mixed_precision_speedup",),
    reads=("end_to_end",),
    reads_if_measured=("nsys_profile",),
    drawn_of=("end_to_end",),
)
