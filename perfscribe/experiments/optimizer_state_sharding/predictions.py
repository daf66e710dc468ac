"""What the counters predict of each optimizer's memory by moment, and where that differs from what was found."""

from __future__ import annotations

from functools import cache

from perfscribe.counters import memory, sharding
from perfscribe.counters.backward_replay import GRADIENTS as GRADIENT_ITEM
from perfscribe.counters.ledger import Items
from perfscribe.counters.sharding import Sharding
from perfscribe.counters.workload import Workload
from perfscribe.experiments.optimizer_state_sharding.names import (
    ACTIVATIONS,
    AFTER_STEP,
    BEFORE_STEP,
    COMMUNICATION,
    GRADIENTS,
    INIT,
    KINDS,
    OTHER,
    PARAMETERS,
    PASSES,
    PEER,
    SHARDED,
    STATE,
    STEP,
    UNSHARDED,
)
from perfscribe.models.shapes import SIZES
from perfscribe.records import Record

# A prediction further off than this, for peaks of a GiB and more, has to name what it lacks.
ALLOWED_ERROR = 0.05
# The rest of the counters' items are activations and temporaries.
KIND_OF_ITEM = {
    memory.PARAMETERS: PARAMETERS,
    memory.STATE: STATE,
    GRADIENT_ITEM: GRADIENTS,
    sharding.COMMUNICATION: COMMUNICATION,
    memory.BUFFERS: OTHER,
    memory.TOKENS: OTHER,
    memory.WORKSPACE: OTHER,
}
MODELS = {
    INIT: sharding.after_init,
    PASSES: sharding.passes_peak,
    BEFORE_STEP: sharding.before_step,
    STEP: sharding.step_peak,
    AFTER_STEP: sharding.before_step,
}


def predicted_kinds(record: Record, moment: str, implementation: str = "") -> dict[str, int]:
    """Predicted bytes by kind on the rank that holds most; of the record's own implementation unless told."""
    f = record.factors
    name = implementation or str(f["implementation"])
    load = Workload(SIZES[f["size"]], f["batch"] // f["world_size"], f["seq_len"], f["dtype"], f["device"])
    kinds = dict.fromkeys(KINDS, 0)
    for item, size in _items(load, f["world_size"], f["wrapper"], f["backend"], name, moment).items():
        kinds[KIND_OF_ITEM.get(item, ACTIVATIONS)] += size
    return kinds


@cache
def _items(load: Workload, world_size: int, wrapper: str, backend: str, name: str, moment: str) -> Items:
    exchange = {UNSHARDED: "", SHARDED: backend, PEER: ""}[name]  # torch's broadcasts from where the parameters lie
    keepers = 1 if name == UNSHARDED else world_size
    return MODELS[moment](Sharding(load, keepers, wrapper == "flat", exchange))


def predicted_bytes(record: Record, moment: str, implementation: str = "") -> int:
    """The sum over kinds."""
    return sum(predicted_kinds(record, moment, implementation).values())


def measured_kinds(record: Record, moment: str) -> dict[str, int]:
    """Counted bytes by kind on the rank that held most."""
    return dict(zip(KINDS, record.series[f"{moment}_bytes"], strict=True))


def measured_bytes(record: Record, moment: str) -> int:
    """The sum over kinds."""
    return sum(record.series[f"{moment}_bytes"])


def missing(record: Record, moment: str) -> tuple[str, int]:
    """The kind in which measured and predicted bytes differ most, and measured minus predicted."""
    predicted = predicted_kinds(record, moment)
    apart = {kind: size - predicted[kind] for kind, size in measured_kinds(record, moment).items()}
    return max(apart.items(), key=lambda term: abs(term[1]))


def error_percent(measured: float, predicted: float) -> float | str:
    """How far the prediction lies above (positive) or below what was measured."""
    return round(100 * (predicted / measured - 1), 3) + 0.0 if measured else "nothing measured"
