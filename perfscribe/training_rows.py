"""The rows of the FSDP workshop's scaling tables: records of trainings, with what their base makes of them, and a
predicted row behind each that could not be measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from perfscribe import tables as t
from perfscribe.counters.peaks import mfu, peak_flops
from perfscribe.counters.weak_scaling import efficiency_percent, inverted_percent, scale_factors
from perfscribe.files import canonical
from perfscribe.records import Record
from perfscribe.training_prediction import (
    STATE_BYTES,
    Links,
    Prediction,
    communication,
    compute_ms,
    flop_per_rank,
    predict,
    shape_of,
)

ONE_EACH = "one rank a node"  # training.launching has it, too, and imports nothing of what presents
PREDICTED, MEASURED = "predicted", "measured"
NO_GPU, NO_NVML = "not counted on a CPU", "NVML does not tell"
NOT_TRAINED = "none: predicted"
NO_BASE = "no row with one rank"
NO_NETWORK = "no network measured"
NO_OTHER = "no other row, or no links"
RULE = ("rule_ms", "rule_error_percent")  # of measured rows, by the rule that predicted ones are made by
TWO_STEPS = "too few steps"
MIB = 2**20
GIB = 2**30
GPU_FIGURES = (
    "avg_gpu_util_%",
    "std_gpu_util_%",
    "avg_mem_alloc_MB",
    "avg_mem_reserved_MB",
    "avg_mem_total_MB",
    "peak_mem_alloc_MB",
    "peak_mem_reserved_MB",
    "peak_mem_total_MB",
)
SPEEDS = ("train/samples_per_second_mean", "steps/s", "stepping_samples_per_second", "stepping_steps/s")
AGAINST = ("samples_scale", "runtime_scale", "efficiency", "runtime_efficiency", "inverted", "work_efficiency")
# Of a predicted row what needs a time of its collectives.
OF_A_STEP = (
    *("train_runtime_s", "train_samples_per_second", "stepping_samples_per_second", "communication_ms", "sent_bytes"),
    *("apart_ms", "overlapped_ms", "error_percent", "overlapped_error_percent"),
)
# What trains in the workshop's tables: on a CPU Trainer does not shard, and the bare loop stands in.
WORKSHOPS_LOOP = {"cuda": "trainer", "cpu": "bare loop"}
SCALED = ("placement", "nodes", "world_size", "wrap")  # what differs between a row and its base


def nodes_of(record: Record) -> int:
    """How many nodes the row's ranks are on; older records say it by their placement alone."""
    apart = record.factors.get("placement") == ONE_EACH
    return int(record.factors.get("nodes", record.factors["world_size"] if apart else 1))


def ranks_per_node(record: Record) -> int:
    """Ranks on each node."""
    return int(record.factors["world_size"]) // nodes_of(record)


def same_setting(record: Record, other: Record, apart: Sequence[str] = SCALED) -> bool:
    """Whether the two differ in nothing but these factors."""
    names = set(record.factors) | set(other.factors)
    return all(record.factors.get(name) == other.factors.get(name) for name in names - set(apart))


def base_of(record: Record, records: Iterable[Record], apart: Sequence[str] = SCALED) -> Record | None:
    """The training of the same setting with fewest ranks that was measured."""
    same = [one for one in records if one.ok and one.origin == MEASURED and same_setting(record, one, apart)]
    return min(same, key=lambda one: one.factors["world_size"], default=None)


def source_of(record: Record, records: Iterable[Record], links: Links, apart: Sequence[str] = SCALED) -> Record | None:
    """What a training is predicted from where it was not measured: of those of the same setting the nearest."""
    same = [one for one in records if one.ok and one.origin == MEASURED and same_setting(record, one, apart)]
    return nearest(record, same, links)


def nearest(record: Record, same: Iterable[Record], links: Links) -> Record | None:
    """Of these the row with most nearly as many ranks on a node, as these share its cores and its links.

    Rows of one rank count only where there are no others: FSDP, and what the host adds for each unit of it, is not in
    them. Where several are as near, one on several nodes is taken for several nodes, then that of most ranks. A row of
    one node is made of others of one node alone.
    """
    timed = [one for one in same if step_ms(one) is not None and _may_lead(record, one, links)]
    known = [one for one in timed if one.factors["world_size"] > 1] or timed

    def distance(one: Record) -> tuple[int, bool, int]:
        each = abs(ranks_per_node(one) - ranks_per_node(record))
        return each, nodes_of(one) == 1, -one.factors["world_size"]

    return min(known, key=distance, default=None)


def _may_lead(record: Record, one: Record, links: Links) -> bool:
    """Whether it is of one node, or both are of several and what such a step communicates is known."""
    if nodes_of(one) == 1:
        return True
    return nodes_of(record) > 1 and communication(one.factors, links, apart=True) is not None


def step_ms(record: Record) -> float | None:
    """Median time of an optimizer step; None where too few were timed."""
    return t.summary(record, "step_ms").median if any(record.samples.get("step_ms", [])) else None


def rows(records: Sequence[Record], links: Links, apart: Sequence[str] = SCALED) -> list[Record]:
    """Each record with its figures beside its base's; behind one that was not measured its prediction, where there is
    a base and links were measured."""
    found = []
    for record in records:
        base = base_of(record, records, apart)
        found.append(with_rule(with_figures(record, base, links), records, links, apart))
        source = source_of(record, records, links, apart)
        if not record.ok and base is not None and source is not None:
            found += predicted_row(record, base, source, links)
    for record in found:
        if record.ok:
            record.values |= _rates(record, base_of(record, records, apart), _bare_beside(record, records))
    return found


def _bare_beside(record: Record, records: Sequence[Record]) -> Record | None:
    """The bare loop's training on as many ranks."""
    beside = (r for r in records if r.ok and r.factors["loop"] == "bare loop" and same_setting(record, r, ("loop",)))
    return next(beside, None) if record.origin == MEASURED else None


def by_placement(every: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """The rows of one node; and those of several: a single rank first, then, by ranks on each, more and more nodes."""
    one = [record for record in every if nodes_of(record) == 1]
    several = [record for record in every if nodes_of(record) > 1]
    ways = list(dict.fromkeys(_way(record) for record in several))
    filled = {(_way(record), ranks) for record in several for ranks in (1, ranks_per_node(record))}
    first = [record for record in one if (_way(record), ranks_per_node(record)) in filled]
    return one, sorted([*first, *several], key=lambda r: (ways.index(_way(r)), ranks_per_node(r), nodes_of(r)))


def _way(record: Record) -> tuple[str, str]:
    return record.factors["backend"], record.factors["loop"]


def measured_steps(every: Sequence[Record]) -> list[Record]:
    """Rows with a step to predict: those of several ranks that are measured or predicted; all, where there is none."""
    several = [record for record in every if record.factors["world_size"] > 1]
    return [record for record in several if record.ok] or several


def prediction_of(record: Record, base: Record | None, links: Links) -> Prediction | None:
    """Of a row's step; None where no links were measured among its ranks, those between nodes included."""
    base_ms = step_ms(base) if base is not None else None
    if base is None or base_ms is None:
        return None
    several = (nodes_of(one) > 1 for one in (record, base))
    return predict(base.factors, base_ms, record.factors, links, *several)


def with_figures(record: Record, base: Record | None, links: Links) -> Record:
    """The record with texts where a figure cannot be, scale factors, efficiencies, MFU and prediction."""
    if not record.ok:
        return record
    values = dict(record.values)
    absent = NO_GPU if record.factors["device"] == "cpu" else NO_NVML
    values = {name: absent for name in GPU_FIGURES} | {name: TWO_STEPS for name in SPEEDS} | values
    found = replace(record, values=values)
    values |= _against(found, base) | _mfu(found)
    guess = prediction_of(record, base, links) if base is not record else None
    values |= _as_values(guess, NO_NETWORK if nodes_of(record) > 1 else "no links measured")
    if guess is not None and (measured := step_ms(record)) is not None:
        values["error_percent"] = 100 * (guess.apart_ms / measured - 1)
        values["overlapped_error_percent"] = 100 * (guess.overlapped_ms / measured - 1)
    return found


def with_rule(record: Record, records: Sequence[Record], links: Links, apart: Sequence[str]) -> Record:
    """A measured row with what the rule of predicted rows makes of it from the others."""
    if not record.ok:
        return record
    own = canonical(record.factors)
    source = source_of(record, [one for one in records if canonical(one.factors) != own], links, apart)
    guess, measured = prediction_of(record, source, links), step_ms(record)
    if guess is None or measured is None:
        return replace(record, values={**record.values, **dict.fromkeys(RULE, NO_OTHER)})
    error = 100 * (guess.apart_ms / measured - 1)
    return replace(record, values={**record.values, **dict(zip(RULE, (guess.apart_ms, error), strict=True))})


def _as_values(guess: Prediction | None, absent: str = "") -> dict[str, Any]:
    """The prediction's terms; absent: why there is none."""
    names = ("compute_ms", "communication_ms", "sent_bytes", "apart_ms", "overlapped_ms")
    if guess is None:
        return dict.fromkeys(names, absent) | {"error_percent": "none", "overlapped_error_percent": "none"}
    return {name: getattr(guess, name) for name in names} | {
        "error_percent": TWO_STEPS,
        "overlapped_error_percent": TWO_STEPS,
    }


def _against(record: Record, base: Record | None) -> dict[str, Any]:
    """Scale factors and efficiencies by the base, by runtime and by steps alone."""
    values: dict[str, Any] = dict.fromkeys(AGAINST, NO_BASE)
    if base is None:
        return values
    rate, runtime = record.values["train_samples_per_second"], record.values["train_runtime_s"]
    base_rate, base_s = base.values["train_samples_per_second"], base.values["train_runtime_s"]
    values["samples_scale"], values["runtime_scale"] = scale_factors(base_rate, rate, base_s, runtime)
    # The same rows are fewer steps on more ranks.
    own_s, of_base_s = runtime / steps_of(record), base_s / steps_of(base)
    values["runtime_efficiency"] = efficiency_percent(of_base_s, own_s)
    values["inverted"] = inverted_percent(of_base_s, own_s)
    own_ms, base_ms = _any_step(record), _any_step(base)
    if own_ms is None or base_ms is None:
        return values | {"efficiency": TWO_STEPS, "work_efficiency": TWO_STEPS}
    values["efficiency"] = efficiency_percent(base_ms, own_ms)
    work = _flop(record) / _flop(base)
    values["work_efficiency"] = values["efficiency"] * work
    return values


def _rates(record: Record, base: Record | None, bare: Record | None) -> dict[str, Any]:
    """Samples/s of a rank, steps alone, over the base's; the step over that of the bare loop on as many ranks."""
    values: dict[str, Any] = {"rate_efficiency": NO_BASE, "over_bare": "no bare loop beside it"}
    name = "stepping_samples_per_second"
    if base is not None:
        own, of_base = record.values.get(name), base.values.get(name)
        values["rate_efficiency"] = TWO_STEPS if own != NO_NETWORK else NO_NETWORK
        if isinstance(own, float) and isinstance(of_base, float):
            ranks = record.factors["world_size"] / base.factors["world_size"]
            values["rate_efficiency"] = 100 * own / of_base / ranks
    own_ms, bare_ms = _any_step(record), _any_step(bare) if bare is not None else None
    if own_ms and bare_ms and record.factors["loop"] != "tuned":
        values["over_bare"] = own_ms / bare_ms
    if record.factors["loop"] == "tuned":
        values["over_bare"] = "another batch"
    return values


def _any_step(record: Record) -> float | None:
    if record.origin != PREDICTED:
        return step_ms(record)
    found = record.values.get("apart_ms")
    return found if isinstance(found, float) else None


def _flop(record: Record) -> float:
    """Of a rank in an optimizer step, with the batch that a tuned loop has found."""
    size = record.values.get("batch_found", record.factors["batch_size"])
    return flop_per_rank({**record.factors, "batch_size": size})


def _mfu(record: Record) -> dict[str, Any]:
    if record.factors["device"] == "cpu":
        return {"mfu": "no peak known for a CPU"}
    ms, peak = step_ms(record), peak_flops(record.gpu, record.factors["dtype"]) if record.gpu else None
    if ms is None or peak is None:
        return {"mfu": TWO_STEPS if ms is None else "no peak known for this GPU"}
    return {"mfu": 100 * (mfu(_flop(record), ms / 1e3, peak) or 0.0)}


def predicted_row(record: Record, base: Record, source: Record, links: Links) -> list[Record]:
    """The row that the record would be, as far as arithmetic goes; none without links.

    base: what it is compared with. source: what its step is made of. On several nodes without a network measured
    between any, it has computing and memory alone.
    """
    guess, source_ms = prediction_of(record, source, links), step_ms(source)
    if source_ms is None:
        return []
    computing = compute_ms(source.factors, source_ms, record.factors, links, nodes_of(source) > 1)
    if computing is None or (guess is None and nodes_of(record) == 1):
        return []
    values: dict[str, Any] = dict.fromkeys(
        (*GPU_FIGURES, "train_loss", "last_train_loss", "eval_loss", *SPEEDS), NOT_TRAINED
    )
    values |= dict.fromkeys(("wrapped_by", *RULE, "units", "local_share", "mfu"), NOT_TRAINED)
    values |= {"parameters": shape_of(record.factors).parameters, "rows_from": source.values["rows_from"]}
    values |= {name: source.values[name] for name in ("batch_found",) if name in source.values}
    values |= _predicted_memory(record, source)
    cleared: dict[str, Any] = {"samples": {}, "warmup": {}, "series": {}, "flags": []}
    made = replace(source, factors=dict(record.factors), origin=PREDICTED, values=values, **cleared)
    if guess is None:
        made.values |= dict.fromkeys((*OF_A_STEP, *AGAINST), NO_NETWORK) | {"compute_ms": computing}
        return [made]
    made.values |= _as_values(guess) | _times(record, source, guess, source_ms)
    made.values |= {"error_percent": NOT_TRAINED, "overlapped_error_percent": NOT_TRAINED}
    made.values |= _against(made, base)
    return [made]


def _times(record: Record, source: Record, guess: Prediction, source_ms: float) -> dict[str, float]:
    """Rates and runtime of a predicted row: its steps, and all else that the source's runtime holds."""
    rest_s = max(0.0, source.values["train_runtime_s"] - steps_of(source) * source_ms / 1e3)
    runtime = steps_of(record) * guess.apart_ms / 1e3 + rest_s
    batch = source.values.get("batch_found", record.factors["batch_size"])  # the step predicted has as many rows
    per_step = batch * record.factors["grad_acc"] * record.factors["world_size"]
    trained = record.factors["train_size"] * record.factors["num_epochs"]
    return {
        "train_runtime_s": runtime,
        "train_samples_per_second": trained / runtime,
        "stepping_samples_per_second": per_step / guess.apart_ms * 1e3 / _mean_over_median(source, source_ms),
    }


def _mean_over_median(record: Record, median_ms: float) -> float:
    """By how much a mean step is longer than the median one: a measured rate is of all steps, the slow ones too."""
    rate = record.values.get("stepping_steps/s")
    return 1e3 / rate / median_ms if isinstance(rate, float) else 1.0


def steps_of(record: Record) -> int:
    """Optimizer steps of the whole training."""
    factors = record.factors
    batches = -(-factors["train_size"] // (factors["batch_size"] * factors["world_size"]))
    return int(factors["num_epochs"] * -(-batches // factors["grad_acc"]))


def _predicted_memory(record: Record, base: Record) -> dict[str, float]:
    """The base's peak and memory at rest, with each rank's part of weights, gradients and AdamW's moments in place of
    the base's; what is gathered meanwhile is not in it."""
    own, of_base = shape_of(record.factors).parameters, shape_of(base.factors).parameters
    ranks = {"FSDP2": base.factors["world_size"]}.get(base.factors["wrap"], 1)
    less_mib = STATE_BYTES * (of_base / ranks - own / record.factors["world_size"]) / MIB
    found = {}
    for name, share in (("avg_mem_alloc_MB", 0.75), ("peak_mem_alloc_MB", 1.0)):  # at rest gradients are gone
        held = base.values.get(name)
        if isinstance(held, (int, float)):
            found[name] = max(0.0, held - share * less_mib)
    return found
