"""Tables of calibration: products by dtype and size, and bandwidths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perfscribe.experiments.calibration import rows as r
from perfscribe.experiments.calibration.levels import SHOWN
from perfscribe.experiments.calibration.measure import PRODUCT
from perfscribe.records.records import Record
from perfscribe.show import tables as t
from perfscribe.show.ceilings import TIMES, quickest
from perfscribe.show.tables import Table

TABLES = SHOWN.tables
NAME = "calibration"
ONE_TIMER = "one timer"
PRODUCTS_NOTE = (
    "Square products of random normal matrices, compared with float64 before they are timed. By replay of CUDA graphs "
    "with L2 flushed, on a CPU by the host clock."
)
BANDWIDTHS_NOTE = (
    "GB: 10⁹ bytes; a copy in memory counts as read and written, a triad as three accesses. Rate: by the "
    "shorter of both times, as a copy in a CUDA graph may go to a slower engine than one launched by itself."
)


def _sheet(record: Record) -> Any:
    found = r.printed(record)
    return r.NOT_KNOWN if found is None else found[0]


def _share(record: Record) -> Any:
    found = r.printed(record)
    return r.NOT_KNOWN if found is None else 100 * r.rate(record) / found[0]


def _source(record: Record) -> Any:
    found = r.printed(record)
    return r.NO_SHEET if found is None else found[1]


def _share_iqr(record: Record) -> Any:
    share, iqr = _share(record), _rate_iqr(record)
    return iqr if isinstance(iqr, str) else share if isinstance(share, str) else share * iqr / r.rate(record)


def _against_sheet(unit: str) -> list[t.Column]:
    share = t.Column(
        "share_percent",
        "Share of it (%)",
        t.if_timed(_share),
        spread="share_percent_spread",
        spread_get=t.if_timed(_share_iqr),
    )
    return [
        t.derived("printed", f"Data sheet ({unit})", t.if_timed(_sheet)),
        share,
        t.derived("source", "Source", t.if_timed(_source), exact=True),
    ]


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Products by dtype and size; bandwidths."""
    cells = records[NAME]
    products = [one for one in cells if one.factors["workload"] == PRODUCT]
    others = [one for one in cells if one.factors["workload"] != PRODUCT]
    return [
        t.make(TABLES[0], "Products by dtype and size", products, _products(), [PRODUCTS_NOTE]),
        t.make(TABLES[1], "Bandwidths", others, _bandwidths(), [BANDWIDTHS_NOTE]),
    ]


def _sample(record: Record) -> str:
    return "product_ms" if record.factors["workload"] == PRODUCT else quickest(record)


def _rate_iqr(record: Record) -> Any:
    found = t.summary(record, _sample(record))
    return t.ONE_SAMPLE if found.n == 1 else r.rate(record) * found.iqr / found.median


def _products() -> list[t.Column]:
    return [
        t.factor("matrix_size", "Rows and columns"),
        t.factor("dtype", "Dtype"),
        t.factor("device", "Device"),
        t.median("product_ms", "Time (ms)"),
        t.iqr("product_ms", "IQR (ms)"),
        t.count("product_ms"),
        t.rate("rate", "Rate (TFLOP/s)", r.rate, "product_ms"),
        *_against_sheet("TFLOP/s"),
        t.value("relative_error", "Error against float64"),
        t.timer("product_ms"),
    ]


def _bandwidths() -> list[t.Column]:
    return [
        t.Column("work", "Work", r.what, kind="factor", exact=True),
        t.Column("device", "Device", r.device, kind="factor", exact=True),
        t.factor("size_mib", "Size (MiB)"),
        t.value("bytes", "Counted (MB)", 1e-6, "counted_mb"),
        t.median("time_ms", "Time (ms)"),
        t.iqr("time_ms", "IQR (ms)"),
        t.count("time_ms"),
        t.timer("time_ms"),
        t.derived("launched_ms", "Launched by itself (ms)", t.if_timed(_launched("median")), spread="launched_ms_iqr"),
        t.derived("launched_ms_iqr", "IQR (ms)", t.if_timed(_launched("iqr"))),
        t.derived("launched_ms_n", "n", t.if_timed(_launched("n")), exact=True),
        t.derived("rate", "Rate (GB/s)", t.if_timed(r.rate), spread="rate_iqr"),
        t.derived("rate_iqr", "IQR (GB/s)", t.if_timed(_rate_iqr)),
        t.derived("rate_by", "Rate by", t.if_timed(_rate_by), exact=True),
        *_against_sheet("GB/s"),
        t.derived("by_way_of", "By way of", t.if_timed(_way), exact=True),
    ]


def _launched(figure: str) -> Callable[[Record], Any]:
    """A figure of the time of a copy that is launched by itself."""
    return lambda record: getattr(t.summary(record, TIMES[1]), figure) if record.samples.get(TIMES[1]) else ONE_TIMER


def _rate_by(record: Record) -> str:
    """Which of its times the rate, its spread and the ceiling are taken from."""
    if not record.samples.get(TIMES[1]):
        return ONE_TIMER
    return "launched by itself" if quickest(record) == TIMES[1] else record.timers.get(TIMES[0], "its timer")


def _way(record: Record) -> str:
    """The link, or the file system."""
    found = record.values.get("link") or record.values.get("file_system")
    return str(found) if found else "its memory" if record.factors["workload"] == "memory" else "the PCIe slot"
