"""Columns of nsys_profile's tables about times of passes; those about kernels and attention have files of their own."""

from __future__ import annotations

from collections.abc import Callable

from perfscribe import tables as t
from perfscribe.experiments.nsys_profile import shares
from perfscribe.profiling.families import GEMM
from perfscribe.records import Record


def factors(*more: t.Column) -> list[t.Column]:
    """The columns that name a cell."""
    return [
        t.factor("size", "Size"),
        t.factor("seq_len", "Context"),
        t.factor("dtype", "Dtype"),
        t.factor("device", "Device"),
        *more,
    ]


# --- forward by its range and by the host clock ---------------------------------------------------------------------


def _same_tool(record: Record) -> bool:
    """Whether ranges and kernels are of one trace, so that their passes are the same ones."""
    return bool(record.values["range_tool"] == record.values["kernel_tool"])


def _of_median_pass(record: Record, name: str) -> float:
    """A figure of the traced forward pass of median length, so that its parts add up; of an even number the shorter."""
    lengths = record.samples["forward_range_ms" if _same_tool(record) else "forward_span_ms"][0]
    return float(record.samples[name][0][sorted(range(len(lengths)), key=lengths.__getitem__)[(len(lengths) - 1) // 2]])


def busy_ms(record: Record) -> float:
    """Time of forward in which the device was busy."""
    return _of_median_pass(record, "forward_busy_ms")


def idle_ms(record: Record) -> float:
    """Idle time of the device between the first and the last kernel of forward."""
    return _of_median_pass(record, "forward_span_ms") - busy_ms(record)


def launch_bound_percent(record: Record) -> float | str:
    """Part of that idle time in which the device waited for a launch; on a CPU there is nothing to launch."""
    if record.factors["device"] == "cpu":
        return "no launches"
    idle = idle_ms(record)
    return 100 * _of_median_pass(record, "forward_launch_bound_ms") / idle if idle > 0 else "no idle time"


def edges_ms(record: Record) -> float | str:
    """What the range of forward holds before its first and after its last kernel."""
    if not _same_tool(record):
        return "of two tools"
    return _of_median_pass(record, "forward_range_ms") - _of_median_pass(record, "forward_span_ms")


def _range_over_host(record: Record) -> float:
    return t.summary(record, "forward_range_ms").median / t.summary(record, "forward_ms").median


def _range_over_traced(record: Record) -> float:
    """Of the same passes, so that both times need not stand side by side, rounded by a spread that they share."""
    return t.summary(record, "forward_range_ms").median / t.summary(record, "forward_traced_ms").median


def _launches(record: Record) -> float:
    return shares.a_pass(sum(kernel.launches for kernel in shares.kernels(record, "forward")), shares.traced(record))


def forward_time() -> list[t.Column]:
    """Forward by its range, by the host clock, and where the time goes."""
    known = ("size", "seq_len", "batch", "dtype")
    return [
        *factors(),
        # not rounded by its spread, as the parts of the same pass are not, or they might exceed the whole
        t.derived("forward_range_ms", "Forward by its range (ms)", lambda r: t.summary(r, "forward_range_ms").median),
        t.iqr("forward_range_ms", "IQR (ms)"),
        t.published("nsys_profile", "forward_nsys_ms", "brandon-snider", "brandon-snider (ms)", known),
        t.median("forward_ms", "Host clock, not traced (ms)"),
        t.iqr("forward_ms", "IQR (ms)"),
        t.count("forward_ms"),
        t.derived("range_over_traced", "Range / host clock, traced", _range_over_traced),
        t.derived("range_over_host", "Range / host clock, not traced", _range_over_host),
        t.derived("forward_busy_ms", "Device busy (ms)", busy_ms),
        t.derived("forward_idle_ms", "Idle between kernels (ms)", idle_ms),
        t.derived("launch_bound_percent", "of it waiting for a launch (%)", launch_bound_percent),
        t.derived("forward_edges_ms", "Before the first and after the last kernel (ms)", edges_ms),
        t.derived("forward_launches", "Launches a pass", _launches, exact=True),
        t.count("forward_range_ms", "n traced"),
        t.value("range_tool", "Ranges by", exact=True),
        t.value("kernel_tool", "Kernels by", exact=True),
        t.Column("tool_remark", "Remark", lambda r: r.values.get("tool_remark", t.NOT_RECORDED), kind="unshown"),
    ]


# --- matrix products ---------------------------------------------------------------------------------------------


def matmul_share() -> list[t.Column]:
    """Share of matrix products by pass."""

    def share(name: str) -> Callable[[Record], float]:
        return lambda r: shares.family_percent(r, shares.PASSES[name], GEMM)

    wanted = ("inference", "forward", "backward", "optimizer", "full step")
    return [
        *factors(),
        *(t.derived(f"{name.replace(' ', '_')}_percent", f"{name.capitalize()} (%)", share(name)) for name in wanted),
        t.derived(
            "change_points", "Full step − inference (points)", lambda r: share("full step")(r) - share("inference")(r)
        ),
        t.median("inference_busy_ms", "Inference, device busy (ms)"),
        t.derived("step_busy_ms", "Full step, device busy (ms)", step_busy_ms),
    ]


def step_busy_ms(record: Record) -> float:
    """Time in which the device was busy in the three phases of a full step."""
    return sum(t.summary(record, f"{phase}_busy_ms").median for phase in shares.PASSES["full step"])
