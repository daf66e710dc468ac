"""Rates and memory of a cell of end_to_end, from its figures and the counters."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from perfscribe import tables as t
from perfscribe.counters import flops, memory, peaks
from perfscribe.counters.parameters import transformer_parameters
from perfscribe.counters.workload import Workload
from perfscribe.models.shapes import SIZES
from perfscribe.records import Record
from perfscribe.tables import GIB

PHASES = {
    "forward_no_grad": "Forward under no_grad",
    "forward_graph": "Forward of a training step, AdamW's state held",
    "full_step": "Full step",
}
RATE_NOTES = [
    "FLOP of a step by PaLM, appendix B: (6 N + 12 L H Q T) a token, N without the embedding (a look-up), no causal "
    "discount. MFU is that over time and the device's dense datasheet peak for the dtype; a device whose peak is not "
    "known has none. Of the measured product: the same rate over the highest one of a square product of that dtype "
    "here, by calibration and flash_benchmarking.",
]


def _load(record: Record) -> Workload:
    f = record.factors
    return Workload(SIZES[f["size"]], f["batch"], f["seq_len"], f["dtype"], f["device"], cublas_handles=2)


def parameters(record: Record) -> int:
    """Parameters by the formula."""
    return transformer_parameters(SIZES[record.factors["size"]])


def backward_by_difference_ms(record: Record) -> float:
    """Forward and backward timed as one, minus forward."""
    return t.summary(record, "forward_backward_ms").median - t.summary(record, "forward_ms").median


def _step_s(record: Record) -> float:
    return t.summary(record, "full_step_ms").median / 1e3


def _tokens(record: Record) -> int:
    return int(record.factors["batch"]) * int(record.factors["seq_len"])


def tokens_per_s(record: Record) -> float:
    """Tokens of a full step over its median time."""
    return _tokens(record) / _step_s(record)


def _step_flop(record: Record) -> float:
    f = record.factors
    return float(flops.palm_flop_per_token(SIZES[f["size"]], f["seq_len"]) * _tokens(record))


def step_tflop(record: Record) -> float:
    """FLOP of a full step, PaLM's convention, in 10^12."""
    return _step_flop(record) / 1e12


def tflop_per_s(record: Record) -> float:
    """FLOP of a full step over its median time."""
    return step_tflop(record) / _step_s(record)


def _peak(record: Record) -> peaks.PeakRate | None:
    gpu = record.values.get("gpu_name")
    return peaks.peak_flops(str(gpu), str(record.factors["dtype"])) if gpu else None


def peak_tflop_per_s(record: Record) -> Any:
    """Datasheet peak of the cell's device and dtype."""
    peak = _peak(record)
    return "not known" if peak is None else peak.flop_per_s / 1e12


def mfu_percent(record: Record) -> Any:
    """Model FLOP utilisation."""
    share = peaks.mfu(_step_flop(record), _step_s(record), _peak(record))
    return "no peak known" if share is None else 100 * share


def items(record: Record, phase: str) -> dict[str, int]:
    """Predicted bytes by item at the peak of a phase; gradients and moments of the training run count where alive."""
    found = dict(_peak_items(_load(record), phase))
    return found | {memory.STATE: 2 * 4 * parameters(record)} if phase == "forward_graph" else found


@cache  # several columns ask for the same replay
def _peak_items(load: Workload, phase: str) -> dict[str, int]:
    if phase == "full_step":
        # torch.optim.AdamW takes foreach on CUDA and the loop over tensors on a CPU.
        return memory.step_peak(load, "foreach" if load.device == "cuda" else "for-loop")
    return memory.forward_peak(load) if phase == "forward_graph" else memory.inference_peak(load)


def peak_gib(phase: str) -> Callable[[Record], float]:
    """Predicted peak of a phase."""
    return lambda record: sum(items(record, phase).values()) / GIB
