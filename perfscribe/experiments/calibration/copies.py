"""Bandwidth of memory, of a link between two GPUs, and between host and device: fp32 tensors of random numbers.

Bytes by operation: a copy reads and writes each byte and counts twice within a memory, once over a link; a triad
a = b + s c reads two and writes one, so three times (as STREAM counts: no read of what is about to be overwritten).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Measurement
from perfscribe.experiments.flash_benchmarking.measure import Clocks
from perfscribe.instruments.timing import record, time_device, time_host

if TYPE_CHECKING:
    from torch import Tensor

MIB = 2**20
FP32_BYTES = 4
TRIAD_FACTOR = 3.0
ACCESSES = {"copy": 2, "triad": 3}
CHECKED_ELEMENTS = 2**16
TOLERANCE = 1e-6  # relative, of fp32 against float64 for one multiplication and one addition
WARMUP = 2
PINNED, TO_DEVICE = "pinned", "host to device"


def _random(size_mib: int, device: str) -> Tensor:
    import torch

    return torch.randn(size_mib * MIB // FP32_BYTES, device=device)


def within(factors: Mapping[str, Any]) -> Measurement:
    """Copy or triad in a device's own memory: by graph replay with L2 flushed on CUDA, by the host clock on a CPU."""
    device, operation, size_mib = factors["device"], factors["operation"], factors["size_mib"]

    def make() -> Callable[[], Tensor]:
        return operation_on(operation, _random(size_mib, device), _random(size_mib, device))

    check(operation, *(_random(size_mib, device) for _ in range(2)))
    measurement = Measurement(values={"bytes": ACCESSES[operation] * size_mib * MIB})
    timers = Clocks(device, factors["samples"])
    timers.time(measurement, "time", make)
    measurement.values |= timers.values()
    return measurement


def operation_on(operation: str, first: Tensor, second: Tensor) -> Callable[[], Tensor]:
    """The call of an operation: copy of first, or triad of both, into a tensor of its own. ValueError: another word."""
    import torch

    out = torch.zeros_like(first)  # zeros, not empty: pages of a CPU are there before anything is timed
    if operation == "copy":
        return lambda: out.copy_(first)
    if operation == "triad":
        return lambda: torch.add(first, second, alpha=TRIAD_FACTOR, out=out)
    raise ValueError(f"operation {operation!r}: expected {' or '.join(ACCESSES)}")


def check(operation: str, first: Tensor, second: Tensor) -> None:
    """ValueError where the operation's ends are others than in float64, beyond fp32's rounding."""
    out = operation_on(operation, first, second)()
    found, a, b = (_ends(tensor).double() for tensor in (out, first, second))
    expected = a + (TRIAD_FACTOR * b if operation == "triad" else 0)
    error = float((found - expected).norm() / expected.norm())
    if not error <= TOLERANCE:
        raise ValueError(f"{operation} is off by {error:.2g} against float64, allowed {TOLERANCE:g}")


def _ends(tensor: Tensor) -> Tensor:
    """The first and last elements: to widen all of a large tensor would take more memory than the work itself."""
    import torch

    return torch.cat([tensor[:CHECKED_ELEMENTS], tensor[-CHECKED_ELEMENTS:]])


def same_content(one: Tensor, other: Tensor) -> None:
    """ValueError where two tensors, on any devices, hold other bits: by the sum of their words and by their ends."""
    import torch

    words = [tensor.view(torch.int32) for tensor in (one, other)]
    sums = {int(each.sum(dtype=torch.int64)) for each in words}
    ends = [torch.cat([each[:CHECKED_ELEMENTS], each[-CHECKED_ELEMENTS:]]).cpu() for each in words]
    if len(sums) > 1 or not torch.equal(*ends):
        raise ValueError("the copy differs from its source")


def between(factors: Mapping[str, Any]) -> Measurement:
    """Copies from one GPU to another, timed by events on the source's stream, on which torch queues them."""
    import torch

    source, target = factors["source_gpu"], factors["target_gpu"]
    held = _random(factors["size_mib"], f"cuda:{source}")
    received = torch.zeros_like(held, device=f"cuda:{target}")
    same_content(received.copy_(held), held)
    values = {"bytes": held.numel() * FP32_BYTES, "peer_access": torch.cuda.can_device_access_peer(source, target)}
    measurement = Measurement(values=values | _rated(source, target))
    with torch.cuda.device(source):
        timing = time_device(
            lambda: received.copy_(held, non_blocking=True), warmup=WARMUP, timed=factors["samples"], flush_l2=False
        )
    record(measurement, "time_ms", timing)
    return measurement


def _rated(source: int, target: int) -> dict[str, Any]:
    """What joins the two, and its rate in one direction, by the driver or the data sheet, as far as that is told."""
    from perfscribe.distributed.link_rates import visible_rates

    pair = {source, target}
    link = next((one for one in visible_rates(max(pair) + 1) if {one.first, one.second} == pair), None)
    if link is None or link.kind is None:
        return {"link": "not told"}
    rate = {} if link.gb_per_s is None else {"rated_gb_per_s": link.gb_per_s, "rated_by": link.by}
    return {"link": link.kind, **rate}


def from_host(factors: Mapping[str, Any]) -> Measurement:
    """Copies between the host's memory, pinned or pageable, and the device, by the host clock, device synchronised."""
    import torch

    pinned = factors["host_memory"] == PINNED
    on_device = _random(factors["size_mib"], "cuda")
    on_host = torch.empty(on_device.shape, pin_memory=pinned).copy_(on_device)
    on_host.neg_()  # other bits than on the device
    to_device = factors["operation"] == TO_DEVICE
    held, received = (on_host, on_device) if to_device else (on_device, on_host)

    def copy() -> Tensor:
        return received.copy_(held, non_blocking=pinned)

    copy()
    torch.cuda.synchronize()
    same_content(received, held)
    measurement = Measurement(values={"bytes": held.numel() * FP32_BYTES})
    record(measurement, "time_ms", time_host(copy, warmup=WARMUP, timed=factors["samples"], device="cuda"))
    return measurement
