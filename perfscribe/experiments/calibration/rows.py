"""What a cell of calibration did, at which rate, and what the data sheet says of it."""

from __future__ import annotations

from perfscribe.analytic.peaks import GB, PCIE, peak_bandwidth
from perfscribe.distributed.link_rates import DATA_SHEET
from perfscribe.experiments.calibration.measure import DISK, LINK, MEMORY, PRODUCT, TRANSFER
from perfscribe.records.records import Record
from perfscribe.show.ceilings import TERA, bytes_per_s, product_flop_per_s, sheet_memory, sheet_product

NOT_KNOWN, NO_SHEET = "not known", "none held"
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


def device(record: Record) -> str:
    """Where the work was done."""
    return str(record.factors.get("device", "cuda" if record.factors["workload"] == LINK else HOST))
