"""The ceilings that rates are held against: measured by calibration where it ran, else from the data sheet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perfscribe.analytic.peaks import GB, MEMORY, mfu, peak_bandwidth, peak_flops
from perfscribe.records.records import Record
from perfscribe.show import tables as t

CALIBRATION, FLASH = "calibration", "flash_benchmarking"
# The name of the kind of cell that is a square product, by the experiment that has some.
PRODUCTS = {CALIBRATION: "product", FLASH: "matmul"}
TERA = 1e12
# Times of a cell that moves bytes: by CUDA graph replay or the only timer, and launched by itself.
TIMES = ("time_ms", "time_launched_ms")
NO_LINK = "not over NVLink"


def product_flop_per_s(record: Record) -> float:
    """Rate of a square product by its median time."""
    return 2 * float(record.factors["matrix_size"]) ** 3 / t.summary(record, "product_ms").median * 1e3


def quickest(record: Record) -> str:
    """The sample that tells what a cell that moves bytes can reach: of the ways in which it was started the quickest.

    A large copy may be given to a slower engine as a node of a CUDA graph than when it is launched by itself.
    """
    timed = [name for name in TIMES if record.samples.get(name)]
    return min(timed or TIMES, key=lambda name: t.summary(record, name).median)


def bytes_per_s(record: Record) -> float:
    """Rate of a cell of calibration that moves bytes, by its median time, started in the quickest way."""
    return float(record.values["bytes"]) / t.summary(record, quickest(record)).median * 1e3


def products(records: Mapping[str, Iterable[Record]]) -> list[Record]:
    """The square products that were measured, of both experiments that have some."""
    found = (t.having(records.get(name, []), workload=kind) for name, kind in PRODUCTS.items())
    return [one for of in found for one in of if one.ok]


class Ceilings:
    """What the site's device can do: highest rate of a product by dtype, bandwidth of memory.

    Measured here, else the data sheet's; None where neither is known. Bandwidth: of the largest size, as smaller ones
    may lie in a cache; the higher of copy and triad.
    """

    def __init__(self, records: Mapping[str, Iterable[Record]]) -> None:
        """records: by experiment; those of calibration and flash_benchmarking count."""
        by_kind = t.grouped(products(records), lambda one: (one.factors["device"], one.factors["dtype"]))
        self._products = {kind: max(map(product_flop_per_s, of)) for kind, of in by_kind.items()}
        moving = [one for one in t.having(records.get(CALIBRATION, []), workload=MEMORY) if one.ok]
        by_size = {
            device: max((one.factors["size_mib"], bytes_per_s(one)) for one in of)
            for device, of in t.grouped(moving, lambda one: one.factors["device"]).items()
        }
        self._memory = {device: rate for device, (_, rate) in by_size.items()}

    def product(self, device: str, dtype: str, gpu: str) -> float | None:
        """FLOP a second."""
        found = self._products.get((device, dtype))
        printed = peak_flops(gpu, dtype) if device == "cuda" else None
        return printed.flop_per_s if found is None and printed else found

    def memory(self, device: str, gpu: str) -> float | None:
        """Bytes a second."""
        found = self._memory.get(device)
        printed = peak_bandwidth(gpu, MEMORY) if device == "cuda" else None
        return printed.bytes_per_s if found is None and printed else found


def mfu_percent(record: Record, flop: float, seconds: float) -> float | str:
    """Of the data sheet's dense peak of the record's GPU and dtype."""
    share = mfu(flop, seconds, peak_flops(record.gpu, str(record.factors["dtype"])))
    return "no peak known" if share is None else 100 * share


def slowest_link(records: Mapping[str, Iterable[Record]]) -> t.Column:
    """A column of the CSV alone: GB/s of the slowest link that calibration measured, where a cell ran over links."""
    links = t.having(records.get(CALIBRATION, []), workload="link")
    slowest = min((bytes_per_s(one) for one in links if one.ok), default=None)

    def get(record: Record) -> Any:
        """Of other transports than NVLinks that are there, and that NCCL was left to use, a link is no ceiling."""
        by_choice = record.factors["backend"] == "nccl" and record.factors.get("transport") in ("default", "nvlink")
        over = by_choice and "NV" in str(record.values.get("links", ""))
        return NO_LINK if not over else "no link measured" if slowest is None else slowest / GB

    return t.Column("link_gb_per_s", "Slowest link (GB/s)", get, kind="unshown")
