"""Columns about the kernels with most time, and about families of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfscribe import tables as t
from perfscribe.experiments.nsys_profile import shares
from perfscribe.experiments.nsys_profile.columns import factors
from perfscribe.experiments.nsys_profile.reading import NS_PER_MS, REST
from perfscribe.profiling.families import GEMM
from perfscribe.records import Record

OTHER_KERNELS = 3
NO_KERNEL = "none"
PUBLISHED_FOR = ("size", "seq_len", "batch", "dtype")
FORWARD: dict[str, Any] = {"pass": "forward"}


def _of_pass(name: str, get: Callable[[shares.KernelTime, float, int], Any]) -> Callable[[Record], Any]:
    """A figure of the kernel with most time in a pass, from it, the pass's device time in ns and the traced passes."""

    def figure(record: Record) -> Any:
        found = [k for k in shares.together(record, shares.PASSES[name]) if k.name != REST]
        total = shares.family_ns(record, shares.PASSES[name]).total()
        return get(found[0], total, shares.traced(record))

    return figure


def _top(name: str, column: str, title: str) -> list[t.Column]:
    launches = _of_pass(name, lambda k, _, passes: shares.a_pass(k.launches, passes))
    return [
        t.derived(f"{column}_kernel", f"{title}: kernel", _of_pass(name, lambda k, _, __: k.name), exact=True),
        t.derived(f"{column}_percent", "Share (%)", _of_pass(name, lambda k, total, _: 100 * k.total_ns / total)),
        t.derived(f"{column}_launches", "Launches a pass", launches, exact=True),
    ]


def _agree(record: Record) -> str:
    forward, backward = (shares.together(record, [name])[0].name for name in ("forward", "backward"))
    return "yes" if forward == backward else "no"


def top_kernels() -> list[t.Column]:
    """The kernel with most device time: forward, backward, both together."""
    return [
        *factors(),
        *_top("forward", "forward", "Forward"),
        t.published(
            "nsys_profile", "top_kernel_count", "brandon-snider", "brandon-snider, launches", PUBLISHED_FOR, **FORWARD
        ),
        *_top("backward", "backward", "Backward"),
        t.derived("same_kernel", "The same", _agree, exact=True),
        *_top("forward and backward", "both", "Both"),
    ]


def _other_kernel(place: int, get: Callable[[shares.KernelTime, float], Any]) -> Callable[[Record], Any]:
    def figure(record: Record) -> Any:
        found = [k for k in shares.kernels(record, "forward") if k.family != GEMM and k.name != REST]
        total = shares.family_ns(record, ["forward"]).total()
        return get(found[place], total) if place < len(found) else NO_KERNEL

    return figure


def other_kernels() -> list[t.Column]:
    """The largest kernels of forward that are no matrix products."""
    columns = [
        *factors(),
        t.derived(
            "besides_matmul_percent",
            "All besides matrix products (%)",
            lambda r: 100 - shares.family_percent(r, ["forward"], GEMM),
        ),
    ]
    for place in range(OTHER_KERNELS):
        columns += [
            t.derived(
                f"kernel_{place + 1}", f"Kernel {place + 1}", _other_kernel(place, lambda k, _: k.name), exact=True
            ),
            t.derived(
                f"percent_{place + 1}", "Share (%)", _other_kernel(place, lambda k, total: 100 * k.total_ns / total)
            ),
        ]
    return columns


def family_shares(names: tuple[str, ...]) -> list[t.Column]:
    """Share of every family in the pass that the factor `pass` names."""

    def share(name: str) -> Callable[[Record], float]:
        return lambda r: shares.family_percent(r, shares.PASSES[r.factors["pass"]], name)

    def busy_ms(record: Record) -> float:
        total = shares.family_ns(record, shares.PASSES[record.factors["pass"]]).total()
        return total / shares.traced(record) / NS_PER_MS

    return [
        *factors(t.factor("pass", "Pass")),
        t.derived("kernels_ms", "Kernels (ms)", busy_ms),
        *(t.derived(f"{name}_percent", f"{name} (%)", share(name)) for name in names),
    ]
