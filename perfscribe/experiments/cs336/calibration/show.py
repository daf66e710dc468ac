"""Tables of calibration: products by dtype and size, bandwidths, the host's times, and the roofline."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from perfscribe.analytic.peaks import GB, PCIE, peak_bandwidth, peak_flops
from perfscribe.distributed.links import DATA_SHEET
from perfscribe.experiments.cs336.calibration import roofline
from perfscribe.experiments.cs336.calibration.levels import SHOWN
from perfscribe.experiments.cs336.calibration.measure import DISK, HOST, LINK, MEMORY, PRODUCT, TRANSFER
from perfscribe.records.records import Record
from perfscribe.show import tables as t
from perfscribe.show.ceilings import TERA, bytes_per_s, product_flop_per_s, quickest

TABLES = SHOWN.tables
CPU = "cpu"
NOT_PRINTED = ("not known", "none held")
WORKS = {
    MEMORY: "{operation} in memory",
    LINK: "GPU {source_gpu} to GPU {target_gpu}",
    TRANSFER: "{operation}, {host_memory}",
    DISK: "disk, {operation}",
}
PRODUCTS_NOTE = (
    "Square products of random normal matrices, compared with float64 before they are timed. Timed by CUDA graph "
    "replay with L2 flushed; on a CPU by the host clock."
)
BANDWIDTHS_NOTE = (
    "GB: 10⁹ bytes; a copy in memory counts as read and written, a triad as three accesses. Rate: by the "
    "shorter of both times, as a copy in a CUDA graph may go to a slower engine than one launched by itself."
)

HOST_NOTE = (
    "Host clock, mean of 500 calls in a row on one number, without waiting for the device. Launch: x.add_(1). "
    "Autograd: forward and backward of w * 2; a GPU's backward goes through a thread of autograd, unless it stays here."
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return products, bandwidths, the host's times, and other experiments' results against the roofline."""
    products = t.having(records["calibration"], workload=PRODUCT)
    host = t.having(records["calibration"], workload=HOST)
    moving = [record for record in records["calibration"] if record.factors["workload"] not in (PRODUCT, HOST)]
    return [
        t.make(TABLES[0], "Products by dtype and size", products, PRODUCTS, [PRODUCTS_NOTE]),
        t.make(TABLES[1], "Bandwidths", moving, BANDWIDTHS, [BANDWIDTHS_NOTE]),
        t.make(TABLES[2], "What the host spends per call", host, HOST_COLUMNS, [HOST_NOTE]),
        roofline.table(TABLES[3], records),
    ]


def _device(record: Record) -> str:
    return str(record.factors.get("device", "cuda" if record.factors["workload"] == LINK else CPU))


def _rate(record: Record) -> float:
    """Return TFLOP/s of a product, GB/s of other work."""
    return product_flop_per_s(record) / TERA if record.factors["workload"] == PRODUCT else bytes_per_s(record) / GB


def _rate_iqr(record: Record) -> Any:
    found = t.summary(record, "product_ms" if record.factors["workload"] == PRODUCT else quickest(record))
    return t.ONE_SAMPLE if found.n == 1 else _rate(record) * found.iqr / found.median


def _way(record: Record) -> str:
    """Return the link or the file system."""
    found = record.values.get("link") or record.values.get("file_system")
    return str(found) if found else "its memory" if record.factors["workload"] == MEMORY else "the PCIe slot"


def _percent(get: Callable[[Record], Any], record: Record) -> Any:
    """Return a rate, or its spread, in percent of the data sheet's value."""
    printed, rate = _printed(record)[0], get(record)
    return printed if isinstance(printed, str) else rate if isinstance(rate, str) else 100 * rate / printed


def _against_sheet(unit: str) -> list[t.Column]:
    """Return columns of the data sheet's value, the share of it that was reached, and its source."""
    share = t.derived("share_percent", "Share of it (%)", partial(_percent, _rate), spread="share_percent_spread")
    return [
        t.derived("printed", f"Data sheet ({unit})", lambda record: _printed(record)[0]),
        replace(share, spread_get=partial(_percent, _rate_iqr)),
        t.derived("source", "Source", lambda record: _printed(record)[1], exact=True),
    ]


def _printed(record: Record) -> tuple[float | str, str]:
    """Return the value of the data sheet, or of the driver, and its source."""
    kind, of = record.factors["workload"], record.factors
    if kind == LINK and "rated_gb_per_s" in record.values:
        by = record.values["rated_by"]
        source = f"links times the rate of one, by the {by}" if by != DATA_SHEET else "NVLink, data sheet"
        return float(record.values["rated_gb_per_s"]), source
    over_nvlink = kind == LINK and str(record.values.get("link", "")).startswith("NV")
    if over_nvlink or kind == DISK or of.get("device") == CPU:
        return NOT_PRINTED
    if kind == PRODUCT:
        peak = peak_flops(record.gpu, str(of["dtype"]))
        return (peak.flop_per_s / TERA, peak.source) if peak else NOT_PRINTED
    found = peak_bandwidth(record.gpu, MEMORY if kind == MEMORY else PCIE)
    return (found.bytes_per_s / GB, found.source) if found else NOT_PRINTED


PRODUCTS = [
    *t.factors(matrix_size="Rows and columns", dtype="Dtype", device="Device"),
    *t.timed("product_ms", "Time (ms)", "n"),
    t.rate("rate", "Rate (TFLOP/s)", _rate, "product_ms"),
    *_against_sheet("TFLOP/s"),
    t.value("relative_error", "Error against float64"),
    t.timer("product_ms"),
]
BANDWIDTHS = [
    t.factor("work", "Work", lambda record: WORKS[record.factors["workload"]].format(**record.factors)),
    t.factor("device", "Device", _device),
    t.factor("size_mib", "Size (MiB)"),
    *t.timed("time_ms", "Time (ms)", "n"),
    t.timer("time_ms"),
    t.derived("rate", "Rate (GB/s)", _rate, spread="rate_iqr"),
    t.derived("rate_iqr", "IQR (GB/s)", _rate_iqr),
    *_against_sheet("GB/s"),
    t.derived("by_way_of", "Path", _way, exact=True),
]
HOST_COLUMNS = [
    *t.factors(operation="Operation", device="Device"),
    *t.timed("call_us", "Time per call (µs)", "n"),
    t.timer("call_us"),
]
