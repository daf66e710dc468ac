"""What the counters predict of a cell of memory_profiling, phase by phase, and where that differs from the record."""

from __future__ import annotations

from functools import cache
from typing import Any

from perfscribe.counters import memory
from perfscribe.counters.backward_replay import GRADIENTS as PREDICTED_GRADIENTS
from perfscribe.counters.forward_replay import WEIGHT_COPIES
from perfscribe.counters.ledger import Items
from perfscribe.counters.workload import Workload
from perfscribe.models.shapes import SIZES
from perfscribe.profiling.memory_timeline import (
    COPIES,
    GRADIENTS,
    KINDS,
    OTHER,
    PARAMETERS,
    REST,
    SAVED,
    STATE,
    TABLES,
    TEMPORARY,
)
from perfscribe.records import Record

# A prediction further off than this, for peaks of a GiB and more, has to name what it lacks.
ALLOWED_ERROR = 0.05
PHASES = ("forward", "backward", "optimizer")
ACTIVATIONS = "activations and temporaries"
# Kinds that the counters know by the same meaning; the rest of their items are activations and temporaries.
KIND_OF_ITEM = {
    memory.PARAMETERS: PARAMETERS,
    memory.STATE: STATE,
    PREDICTED_GRADIENTS: GRADIENTS,
    WEIGHT_COPIES: COPIES,
    memory.BUFFERS: TABLES,
    memory.TOKENS: TABLES,
    memory.WORKSPACE: OTHER,
}


def load(record: Record) -> Workload:
    """What the counters are asked; a pass without backward uses one cuBLAS handle, a step two."""
    f = record.factors
    handles = 2 if f["mode"] == "full_step" else 1
    return Workload(SIZES[f["size"]], f["batch"], f["seq_len"], f["dtype"], f["device"], cublas_handles=handles)


def items(record: Record) -> dict[str, Items]:
    """Predicted bytes by item at the peak of each phase."""
    return _items(load(record), record.factors["mode"])


@cache
def _items(load: Workload, mode: str) -> dict[str, Items]:
    if mode == "inference":
        return {"forward": memory.inference_peak(load)}
    if mode == "forward":
        return {"forward": memory.forward_peak(load)}
    # torch.optim.AdamW takes foreach on CUDA and the loop over tensors on a CPU.
    return memory.step_phase_peaks(load, "foreach" if load.device == "cuda" else "for-loop")


def peak_bytes(record: Record) -> int:
    """Predicted peak of the whole pass."""
    return max(memory.total_bytes(phase) for phase in items(record).values())


def measured_kinds(record: Record, phase: str) -> dict[str, int]:
    """Recorded bytes by kind at the phase's peak.

    What the allocator counted beyond the blocks as they were asked for is added to the rests of unsplit blocks.
    """
    kinds = dict(zip(KINDS, record.series[f"{phase}_kinds_bytes"], strict=True))
    kinds[REST] += record.values[f"{phase}_peak_bytes"] - record.values[f"{phase}_replayed_bytes"]
    return kinds


def missing(record: Record, phase: str) -> dict[str, int]:
    """Measured minus predicted bytes by term at the phase's peak, largest difference first."""
    measured = measured_kinds(record, phase)
    measured[ACTIVATIONS] = measured.pop(SAVED) + measured.pop(TEMPORARY)
    for item, size in items(record)[phase].items():
        measured[KIND_OF_ITEM.get(item, ACTIVATIONS)] -= size
    return dict(sorted(measured.items(), key=lambda term: -abs(term[1])))


def highest_phase(record: Record) -> str:
    """The phase with the pass's peak; KeyError where none began."""
    phases = [phase for phase in PHASES if f"{phase}_peak_bytes" in record.values]
    if not phases:
        raise KeyError("peak_bytes")
    return max(phases, key=lambda phase: record.values[f"{phase}_peak_bytes"])


def error_percent(measured: float, predicted: float) -> Any:
    """How far the prediction lies above (positive) or below what was measured."""
    return round(100 * (predicted / measured - 1), 3) + 0.0  # never -0.0
