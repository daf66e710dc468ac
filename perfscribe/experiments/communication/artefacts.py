"""Files of a profile that stay on this machine: the Chrome trace, and the key_averages table as CSV.

They lie beside the site's other generated files and are not published: a trace names the host.
"""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.base import files

if TYPE_CHECKING:
    import torch

COLUMNS = ("name", "count", "self_cpu_ms", "cpu_ms", "self_device_ms", "device_ms")
SHOWN = 5
# Compressing hard takes longer than profiling.
_COMPRESSION = 5


def keep(profiler: torch.profiler.profile, trace: Path, base: str, device: str) -> list[list[Any]]:
    """Write BASE.json.gz and BASE.csv; the first rows of the table, which is sorted by the device's own time.

    On a CPU the host's own time sorts it.
    """
    path = Path(base)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path.with_name(f"{path.name}.json.gz"), gzip.compress(trace.read_bytes(), _COMPRESSION, mtime=0))
    rows = [_row(one) for one in profiler.key_averages()]
    by = COLUMNS.index("self_device_ms" if device == "cuda" else "self_cpu_ms")
    rows.sort(key=lambda row: -float(row[by]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([COLUMNS, *rows])
    files.write_text(path.with_name(f"{path.name}.csv"), text.getvalue())
    return [row for row in rows if not row[0].startswith("ProfilerStep")][:SHOWN]


def _row(one: Any) -> list[Any]:
    """A row of torch's table; its times are in µs."""
    times = (one.self_cpu_time_total, one.cpu_time_total, one.self_device_time_total, one.device_time_total)
    return [one.key, one.count, *(time_us / 1000 for time_us in times)]
