"""What a reader of a cell's figures should know of what happened beside it, made of what watch.Watch saw.

Records keep what was seen and the flags of the day; the flags are made again where records are read, so that cells
measured long ago are marked by today's rules.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

THROTTLED_SHARE = 0.05
LOW_CLOCK_SHARE = 0.95
IDLE_CLOCK_SHARE = 0.5  # a device that waits for its host falls to its idle clock, a fifth of the highest: no fault
HOST_BUSY_SHARE = 0.10
READINGS_FOR_A_SHARE = 5  # of fewer, a share of the time would say more than was seen

# What flags of cells that others disturbed begin with. What throttles a device is part of the machine, and only marked.
DISTURBED = ("foreign process ", "host busy ")
OF_WATCH = ("throttled ", "SM clock ", *DISTURBED)  # what the flags made here begin with


def flags(summary: Mapping[str, Any], highest_clock_mhz: float | None = None, attempts: int = 1) -> list[str]:
    """What a reader of the cell's figures should know; such a cell is marked, never dropped.

    The thresholds above are this project's choice.

    summary: of watch.Watch. attempts: how often the cell was started; a second start may still see the first one's
        processes.
    """
    marks = [_throttling(summary), _clock(summary, highest_clock_mhz), _foreign(summary, attempts), _load(summary)]
    return [mark for mark in marks if mark]


def flags_of(row: Mapping[str, Any]) -> list[str]:
    """A record's flags, those of its watch made anew."""
    if not row.get("watch"):
        return list(row["flags"])
    provenance = row["provenance"]
    highest = max((gpu.get("sm_max") or 0 for gpu in provenance.get("gpu_clocks_mhz") or ()), default=0)
    others = [flag for flag in row["flags"] if not flag.startswith(OF_WATCH)]
    return [*flags(row["watch"], highest or None, provenance.get("attempts") or 1), *others]


def _throttling(summary: Mapping[str, Any]) -> str:
    share = summary.get("throttled_fraction") or 0.0
    if share <= THROTTLED_SHARE:
        return ""
    count = summary.get("samples") or READINGS_FOR_A_SHARE
    few = count < READINGS_FOR_A_SHARE
    part = f"in {share * count:.0f} of {count} readings" if few else f"{100 * share:.0f} % of the time"
    reasons = ", ".join(sorted(summary.get("throttle_reasons") or {}))
    return f"throttled {part}" + (f" ({reasons})" if reasons else "")


def _clock(summary: Mapping[str, Any], highest_mhz: float | None) -> str:
    """Said beside throttling too: between two readings of its bits a device slows down unseen."""
    median = summary.get("median_sm_clock_mhz")
    if not median or not highest_mhz or not IDLE_CLOCK_SHARE < median / highest_mhz < LOW_CLOCK_SHARE:
        return ""
    return f"SM clock {median:.0f} MHz of at most {highest_mhz:.0f}"


def _foreign(summary: Mapping[str, Any], attempts: int) -> str:
    names = summary.get("foreign_gpu_processes") or ()
    if not names:
        return ""
    counted = ", ".join(name if n == 1 else f"{n} × {name}" for name, n in sorted(Counter(names).items()))
    python_alone = all(re.fullmatch(r"python[\d.]*", name) for name in names)
    perhaps = "; perhaps of this cell's first attempt" if attempts > 1 and python_alone else ""
    return f"foreign process on the GPU ({counted}{perhaps})"


def _load(summary: Mapping[str, Any]) -> str:
    load = summary.get("host_load_other") or 0.0
    if load <= HOST_BUSY_SHARE:
        return ""
    # Not by whom: what the kernel does for a cell's own network is charged to no process, and so not to the cell's.
    return f"host busy ({100 * load:.0f} % of the cores with what is not counted as the cell's)"
