"""Tables and figure of nsys_profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from perfscribe.analytic import flops
from perfscribe.analytic.shapes import SIZES
from perfscribe.experiments.nsys_profile import drawings, rows
from perfscribe.experiments.nsys_profile.levels import SHOWN
from perfscribe.experiments.nsys_profile.reading import NS_PER_MS, REST
from perfscribe.instruments.profiling.families import FAMILIES, GEMM
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
PASSES = ("forward", "backward", "full step")
FORWARD_NOTE = (
    "Forward of a training step, to the loss; busy, idle and ends are those of the traced pass of median length. "
    "Waiting for a launch: idle time before kernels whose launch was not over when the device ran dry."
)
KERNELS_NOTE = (
    "Share: of the kernel time of the pass. A name that several kernels share once shortened ends in # and the start "
    "of a digest of the full one."
)
FAMILY_NOTE = "Share of the pass's kernel time; rare kernels that a record keeps as one sum count as other."
ATTENTION_NOTE = (
    "Means over layers and traced passes. FLOP: causal masking saves none, and softmax has five an element; its least "
    "traffic: each element read and written once."
)
NVTX_NOTE = "Complete for the cells that config.yaml calls detailed, else the largest kernels of each phase."
FORWARD_CAPTION = (
    "Where the range of the forward pass goes, in the traced pass of median length, its milliseconds above; marked the "
    "median time of the same pass by the host clock, without a profiler."
)
NS_PER_US = 1e3
FP32_BYTES = 4
# A softmax takes, for each element: maximum, subtraction, exponential, sum, division.
SOFTMAX_FLOP_PER_ELEMENT = 5
NO_PRODUCT = "no product traced"


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Forward, kernels with most time, shares of products and families, attention, every range with its kernels."""
    cells = records["nsys_profile"]
    passes, kernels = rows.by_pass(cells, PASSES), rows.by_kernel(cells)
    return [
        t.make(TABLES[0], "Forward by its range and by the host clock", cells, _forward(), [FORWARD_NOTE]),
        t.make(TABLES[1], "Kernels with most time", cells, _top_kernels(), [KERNELS_NOTE]),
        t.make(TABLES[2], "Share of matrix products in kernel time", cells, _matmul_share()),
        t.make(TABLES[3], "Softmax and the attention products", cells, _attention(), [ATTENTION_NOTE]),
        t.make(TABLES[4], "Kernel time by family", passes, _families(), [FAMILY_NOTE]),
        t.make(TABLES[5], "Ranges and their kernels", kernels, _kernels(), [NVTX_NOTE]),
    ]


def _factors(*more: t.Column) -> list[t.Column]:
    return [
        t.factor("size", "Size"),
        t.factor("seq_len", "Context"),
        t.factor("dtype", "Dtype"),
        t.factor("device", "Device"),
        *more,
    ]


# --- forward by its range and by the host clock ---------------------------------------------------------------------


def _busy_ms(record: Record) -> float:
    return rows.of_median_pass(record, "forward_busy_ms")


def _idle_ms(record: Record) -> float:
    """Between the first and the last kernel of forward."""
    return rows.of_median_pass(record, "forward_span_ms") - _busy_ms(record)


def _launch_bound_percent(record: Record) -> float | str:
    """Part of that idle time in which the device waited for a launch; on a CPU there is nothing to launch."""
    if record.factors["device"] == "cpu":
        return "no launches"
    idle = _idle_ms(record)
    return 100 * rows.of_median_pass(record, "forward_launch_bound_ms") / idle if idle > 0 else "no idle time"


def _edges_ms(record: Record) -> float | str:
    """What the range of forward holds before its first and after its last kernel."""
    if not rows.same_tool(record):
        return "of two tools"
    return rows.of_median_pass(record, "forward_range_ms") - rows.of_median_pass(record, "forward_span_ms")


def _range_over(sample: str) -> Callable[[Record], float]:
    return lambda record: t.summary(record, "forward_range_ms").median / t.summary(record, sample).median


def _launches(record: Record) -> float:
    return rows.a_pass(sum(kernel.launches for kernel in rows.kernels(record, "forward")), rows.traced(record))


def _forward() -> list[t.Column]:
    known = ("size", "seq_len", "batch", "dtype")
    return [
        *_factors(),
        # not rounded by its spread, as the parts of the same pass are not, or they might exceed the whole
        t.derived("forward_range_ms", "Forward by its range (ms)", lambda r: t.summary(r, "forward_range_ms").median),
        t.iqr("forward_range_ms", "IQR (ms)"),
        t.published("nsys_profile", "forward_nsys_ms", "brandon-snider", "brandon-snider (ms)", known),
        t.median("forward_ms", "Host clock, not traced (ms)"),
        t.iqr("forward_ms", "IQR (ms)"),
        t.count("forward_ms"),
        t.derived("range_over_traced", "Range / host clock, traced", _range_over("forward_traced_ms")),
        t.derived("range_over_host", "Range / host clock, not traced", _range_over("forward_ms")),
        t.derived("forward_busy_ms", "Device busy (ms)", _busy_ms),
        t.derived("forward_idle_ms", "Idle between kernels (ms)", _idle_ms),
        t.derived("launch_bound_percent", "of it waiting for a launch (%)", _launch_bound_percent),
        t.derived("forward_edges_ms", "Before the first and after the last kernel (ms)", _edges_ms),
        t.derived("forward_launches", "Launches a pass", _launches, exact=True),
        t.count("forward_range_ms", "n traced"),
        t.value("range_tool", "Ranges by", exact=True),
        t.value("kernel_tool", "Kernels by", exact=True),
        t.Column("tool_remark", "Remark", lambda r: r.values.get("tool_remark", t.NOT_RECORDED), kind="unshown"),
    ]


# --- kernels and families -------------------------------------------------------------------------------------------


def _top(name: str, column: str, title: str) -> list[t.Column]:
    """The kernel with most time in a pass."""

    def first(get: Callable[[rows.KernelTime, float, int], Any]) -> Callable[[Record], Any]:
        def figure(record: Record) -> Any:
            found = [kernel for kernel in rows.together(record, rows.PASSES[name]) if kernel.name != REST]
            return get(found[0], rows.family_ns(record, rows.PASSES[name]).total(), rows.traced(record))

        return figure

    launches = first(lambda kernel, _, passes: rows.a_pass(kernel.launches, passes))
    return [
        t.derived(f"{column}_kernel", f"{title}: kernel", first(lambda kernel, _, __: kernel.name), exact=True),
        t.derived(f"{column}_percent", "Share (%)", first(lambda kernel, total, _: 100 * kernel.total_ns / total)),
        t.derived(f"{column}_launches", "Launches a pass", launches, exact=True),
    ]


def _agree(record: Record) -> str:
    forward, backward = (rows.together(record, [name])[0].name for name in ("forward", "backward"))
    return "yes" if forward == backward else "no"


def _top_kernels() -> list[t.Column]:
    known, fixed = ("size", "seq_len", "batch", "dtype"), {"pass": "forward"}
    return [
        *_factors(),
        *_top("forward", "forward", "Forward"),
        t.published("nsys_profile", "top_kernel_count", "brandon-snider", "brandon-snider, launches", known, **fixed),
        *_top("backward", "backward", "Backward"),
        t.derived("same_kernel", "The same", _agree, exact=True),
        *_top("forward and backward", "both", "Both"),
    ]


def _matmul_share() -> list[t.Column]:
    def share(name: str) -> Callable[[Record], float]:
        return lambda r: rows.family_percent(r, rows.PASSES[name], GEMM)

    def step_busy_ms(record: Record) -> float:
        return sum(t.summary(record, f"{phase}_busy_ms").median for phase in rows.PASSES["full step"])

    def change(record: Record) -> float:
        return share("full step")(record) - share("inference")(record)

    wanted = ("inference", "forward", "backward", "optimizer", "full step")
    return [
        *_factors(),
        *(t.derived(f"{name.replace(' ', '_')}_percent", f"{name.capitalize()} (%)", share(name)) for name in wanted),
        t.derived("change_points", "Full step − inference (points)", change),
        t.median("inference_busy_ms", "Inference, device busy (ms)"),
        t.derived("step_busy_ms", "Full step, device busy (ms)", step_busy_ms),
    ]


def _families() -> list[t.Column]:
    def share(name: str) -> Callable[[Record], float]:
        return lambda r: rows.family_percent(r, rows.PASSES[r.factors["pass"]], name)

    def kernels_ms(record: Record) -> float:
        total = rows.family_ns(record, rows.PASSES[record.factors["pass"]]).total()
        return total / rows.traced(record) / NS_PER_MS

    return [
        *_factors(t.factor("pass", "Pass")),
        t.derived("kernels_ms", "Kernels (ms)", kernels_ms),
        *(t.derived(f"{name}_percent", f"{name} (%)", share(name)) for name in FAMILIES),
    ]


def _kernels() -> list[t.Column]:
    return [
        *_factors(t.factor("range", "Range"), t.factor("kernel", "Kernel")),
        t.value("family", "Family", exact=True),
        t.value("launches", "Launches a pass", exact=True),
        t.value("percent", "Share of the range (%)"),
        t.value("total_us", "Total a pass (µs)"),
        t.value("mean_us", "Mean (µs)"),
        t.value("median_us", "Median (µs)"),
        t.value("min_us", "Shortest (µs)"),
        t.value("max_us", "Longest (µs)"),
    ]


# --- one layer's attention ------------------------------------------------------------------------------------------


def _calls(record: Record) -> int:
    return SIZES[record.factors["size"]].layers * rows.traced(record)


def _matmul_us(label: str) -> Callable[[Record], float]:
    """Mean time of one call's matrix product in an attention range."""
    return lambda r: rows.family_ns(r, [label])[GEMM] / _calls(r) / NS_PER_US


def _scale_and_mask_us(record: Record) -> float:
    times = rows.family_ns(record, ["scores"])
    return (times.total() - times[GEMM]) / _calls(record) / NS_PER_US


def _softmax_us(record: Record) -> float:
    return rows.family_ns(record, ["softmax"]).total() / _calls(record) / NS_PER_US


def _matmul_flop(record: Record) -> float:
    """Of one of a layer's two attention products."""
    f = record.factors
    shape = SIZES[f["size"]]
    return flops.forward_matmul_flop(shape, f["batch"], f["seq_len"])["attention scores"] / shape.layers


def _score_elements(record: Record) -> int:
    f = record.factors
    return int(f["batch"] * SIZES[f["size"]].heads * f["seq_len"] ** 2)


def _softmax_flop(record: Record) -> float:
    return float(SOFTMAX_FLOP_PER_ELEMENT * _score_elements(record))


def _time_ratio(record: Record) -> float | str:
    products_us = _matmul_us("scores")(record) + _matmul_us("final_matmul")(record)
    return _softmax_us(record) / products_us if products_us > 0 else NO_PRODUCT


def _scores_rate(record: Record) -> float | str:
    us = _matmul_us("scores")(record)
    return _matmul_flop(record) / us / 1e6 if us > 0 else NO_PRODUCT


def _softmax_gb_per_s(record: Record) -> float | str:
    """Of fp32 elements alone."""
    if record.factors["dtype"] not in ("fp32", "tf32"):
        return "under autocast"
    return 2 * FP32_BYTES * _score_elements(record) / _softmax_us(record) / 1e3


def _if_traced(get: Callable[[Record], float]) -> Callable[[Record], float]:
    """The figure, of cells that have a trace of the softmax; KeyError for others, so that they show their status."""

    def figure(record: Record) -> float:
        rows.kernels(record, "softmax")
        return get(record)

    return figure


def _attention() -> list[t.Column]:
    flop_ratio = _if_traced(lambda r: _softmax_flop(r) / (2 * _matmul_flop(r)))
    return [
        *_factors(),
        t.derived("scores_matmul_us", "Scores, product (µs)", _matmul_us("scores")),
        t.derived("scale_and_mask_us", "Scale and mask (µs)", _scale_and_mask_us),
        t.derived("softmax_us", "Softmax (µs)", _softmax_us),
        t.derived("final_matmul_us", "Final product (µs)", _matmul_us("final_matmul")),
        t.derived("time_ratio", "Softmax / both products, time", _time_ratio),
        t.derived("matmul_mflop", "One product (MFLOP)", _if_traced(lambda r: _matmul_flop(r) / 1e6)),
        t.derived("softmax_mflop", "Softmax (MFLOP)", _if_traced(lambda r: _softmax_flop(r) / 1e6)),
        t.derived("flop_ratio", "Softmax / both products, FLOP", flop_ratio),
        t.derived("scores_tflop_per_s", "Scores (TFLOP/s)", _scores_rate),
        t.derived("softmax_tflop_per_s", "Softmax (TFLOP/s)", lambda r: _softmax_flop(r) / _softmax_us(r) / 1e6),
        t.derived("softmax_gb_per_s", "Softmax, least traffic (GB/s)", _softmax_gb_per_s),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Where forward's time goes."""
    draw = partial(drawings.draw_forward, table=tables[TABLES[0]])
    return [f.Figure(FIGURES[0], FORWARD_CAPTION, draw, sample="forward_range_ms")]
