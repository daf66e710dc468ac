"""The ceilings as rows: of each kind of work, dtype or direction, the cell that stands for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from perfscribe.ceilings import TERA, bytes_per_s, largest, product_flop_per_s, sheet_memory, sheet_product
from perfscribe.counters.bandwidth_peaks import GB, PCIE, peak_bandwidth
from perfscribe.experiments.calibration.measure import DISK, LINK, MEMORY, PRODUCT, TRANSFER
from perfscribe.parallel.link_rates import DATA_SHEET
from perfscribe.records import STATUSES, Record

NOT_KNOWN, NO_SHEET = "not known", "none held"
TFLOP, GIGABYTES = "TFLOP/s", "GB/s"
HOST = "cpu"


def rate(record: Record) -> float:
    """TFLOP/s of a product, GB/s of all else."""
    return product_flop_per_s(record) / TERA if record.factors["workload"] == PRODUCT else bytes_per_s(record) / GB


def printed(record: Record) -> tuple[float, str] | None:
    """What the data sheet, or the driver, says of the same; the source. None where there is none."""
    kind, f = record.factors["workload"], record.factors
    if kind == LINK:
        return _of_link(record)
    if kind == DISK or f.get("device") == HOST or not record.gpu:
        return None
    if kind == TRANSFER:
        slot = peak_bandwidth(record.gpu, PCIE)
        return None if slot is None else (slot.bytes_per_s / GB, slot.source)
    found = sheet_product(record.gpu, str(f["dtype"])) if kind == PRODUCT else sheet_memory(record.gpu)
    return None if found is None else (found.per_s / (TERA if kind == PRODUCT else GB), found.detail)


def _of_link(record: Record) -> tuple[float, str] | None:
    rated = record.values.get("rated_gb_per_s")
    if rated is not None:
        by = record.values["rated_by"]
        return float(rated), f"links times the rate of one, by the {by}" if by != DATA_SHEET else "NVLink, data sheet"
    if str(record.values.get("link", "")).startswith("NV") or not record.gpu:
        return None
    slot = peak_bandwidth(record.gpu, PCIE)
    return None if slot is None else (slot.bytes_per_s / GB, slot.source)


def what(record: Record) -> str:
    """The cell's work in words."""
    f = record.factors
    if f["workload"] == PRODUCT:
        return f"product in {f['dtype']}"
    if f["workload"] == MEMORY:
        return f"{f['operation']} in memory"
    if f["workload"] == LINK:
        return f"GPU {f['source_gpu']} to GPU {f['target_gpu']}"
    if f["workload"] == TRANSFER:
        return f"{f['operation']}, {f['host_memory']}"
    return f"disk, {f['operation']}"


def size(record: Record) -> str:
    """The size that was taken."""
    f = record.factors
    return f"{f['matrix_size']} rows" if f["workload"] == PRODUCT else f"{f['size_mib']} MiB"


def device(record: Record) -> str:
    """Where the work was done."""
    return str(record.factors.get("device", "cuda" if record.factors["workload"] == LINK else HOST))


def _best(cells: Sequence[Record]) -> Record:
    return max(cells, key=rate)


def _of_largest(cells: Sequence[Record]) -> Record:
    """Smaller ones may lie in a cache."""
    return max(cells, key=lambda one: one.factors["size_mib"])


def summary(cells: Iterable[Record]) -> list[Record]:
    """A row a ceiling: products by dtype at their best size; memory, transfers and disk at their largest; the slowest
    and the fastest link."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for one in cells:
        name = LINK if one.factors["workload"] == LINK else what(one)
        groups.setdefault((name, device(one)), []).append(one)
    found: list[Record] = []
    for (name, _), group in groups.items():
        ok = [one for one in group if one.ok]
        if not ok:
            found.append(_row(min(group, key=lambda one: STATUSES.index(one.status)), _plain(name)))
        elif name == LINK:
            links = largest([replace(one, factors={**one.factors, "device": "cuda"}) for one in ok])
            ordered = sorted(links, key=rate)
            found += [_row(ordered[0], _ends(ordered, "slowest")), _row(ordered[-1], _ends(ordered, "fastest"))]
        else:
            choose: Callable[[Sequence[Record]], Record]
            choose = _best if ok[0].factors["workload"] == PRODUCT else _of_largest
            found.append(_row(choose(ok), name))
    return found


def _plain(name: str) -> str:
    return "GPU to GPU" if name == LINK else name


def _ends(links: Sequence[Record], which: str) -> str:
    one = links[0] if which == "slowest" else links[-1]
    return f"GPU to GPU, {which} of {len(links)}: {what(one).replace('GPU ', '')}"


def _row(record: Record, name: str) -> Record:
    """The chosen cell under the ceiling's name."""
    unit = TFLOP if record.factors["workload"] == PRODUCT else GIGABYTES
    factors: dict[str, Any] = {**record.factors, "ceiling": name, "device": device(record), "unit": unit}
    return replace(record, factors=factors)
