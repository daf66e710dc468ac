"""Ceilings for rates: measured by calibration if it ran, else from the data sheet."""

from collections.abc import Iterable, Mapping
from typing import Any

from perfscribe.analytic.peaks import GB, MEMORY, mfu, peak_bandwidth, peak_flops
from perfscribe.records.records import Record
from perfscribe.show import tables as t

CALIBRATION, FLASH = "calibration", "flash_benchmarking"
# Level of the factor workload that marks square matrix products, by experiment.
PRODUCTS = {CALIBRATION: "product", FLASH: "matmul"}
TERA = 1e12
# Samples of a cell that moves bytes: time by CUDA graph replay (or the only timer), and when launched separately.
TIMES = ("time_ms", "time_launched_ms")
NO_LINK = "not over NVLink"


def product_flop_per_s(record: Record) -> float:
    """FLOP/s of a square matrix product, by its median time."""
    return 2 * float(record.factors["matrix_size"]) ** 3 / t.summary(record, "product_ms").median * 1e3


def quickest(record: Record) -> str:
    """Name of the faster of the samples of a cell that moves bytes, by launch method.

    A large copy may run on a slower engine as a node of a CUDA graph than when launched separately.
    """
    timed = [name for name in TIMES if record.samples.get(name)]
    return min(timed or TIMES, key=lambda name: t.summary(record, name).median)


def bytes_per_s(record: Record) -> float:
    """Bytes/s of a calibration cell, by the median time of its faster launch method."""
    return float(record.values["bytes"]) / t.summary(record, quickest(record)).median * 1e3


def products(records: Mapping[str, Iterable[Record]]) -> list[Record]:
    """Measured square matrix products of both experiments."""
    groups = (t.having(records.get(name, []), workload=kind) for name, kind in PRODUCTS.items())
    return [record for group in groups for record in group if record.ok]


class Ceilings:
    """Limits of the site's device: highest FLOP/s of a matrix product by dtype, memory bandwidth.

    Measured, else from the data sheet; None if both are unknown. Bandwidth is that of the largest size, as smaller ones
    may fit into a cache; the higher of copy and triad.
    """

    def __init__(self, records: Mapping[str, Iterable[Record]]) -> None:
        """records: by experiment; those of calibration and flash_benchmarking count."""
        by_kind = t.grouped(products(records), lambda record: record.levels("device", "dtype"))
        self._products = {kind: max(map(product_flop_per_s, group)) for kind, group in by_kind.items()}
        moving = [record for record in t.having(records.get(CALIBRATION, []), workload=MEMORY) if record.ok]
        by_size = {
            device: max((record.factors["size_mib"], bytes_per_s(record)) for record in group)
            for device, group in t.grouped(moving, lambda record: record.factors["device"]).items()
        }
        self._memory = {device: rate for device, (_, rate) in by_size.items()}

    def product(self, device: str, dtype: str, gpu: str) -> float | None:
        """FLOP/s."""
        measured = self._products.get((device, dtype))
        printed = peak_flops(gpu, dtype) if device == "cuda" else None
        return printed.flop_per_s if measured is None and printed else measured

    def memory(self, device: str, gpu: str) -> float | None:
        """Bytes/s."""
        measured = self._memory.get(device)
        printed = peak_bandwidth(gpu, MEMORY) if device == "cuda" else None
        return printed.bytes_per_s if measured is None and printed else measured


def mfu_percent(record: Record, flop: float, seconds: float) -> float | str:
    """Percent of the data sheet's dense peak for the record's GPU and dtype."""
    share = mfu(flop, seconds, peak_flops(record.gpu, str(record.factors["dtype"])))
    return "no peak known" if share is None else 100 * share


def slowest_link(records: Mapping[str, Iterable[Record]]) -> t.Column:
    """CSV-only column: GB/s of the slowest link that calibration measured, for cells that ran over NVLink."""
    links = t.having(records.get(CALIBRATION, []), workload="link")
    slowest = min((bytes_per_s(record) for record in links if record.ok), default=None)

    def get(record: Record) -> Any:
        """Return a text unless NCCL was free to use NVLinks: a link's rate is no ceiling for other transports."""
        by_choice = record.factors["backend"] == "nccl" and record.factors.get("transport") in ("default", "nvlink")
        over = by_choice and "NV" in str(record.values.get("links", ""))
        return NO_LINK if not over else "no link measured" if slowest is None else slowest / GB

    return t.Column("link_gb_per_s", "Slowest link (GB/s)", get, kind="unshown")
