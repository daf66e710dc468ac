"""The rows of the FSDP workshop's scaling tables: records of trainings beside their base, and predicted rows.

A predicted row stands behind each that could not be measured. It computes as a measured training does, in proportion
to the FLOP of a rank; each unit of FSDP costs its all-gathers and its reduce-scatter, latency + bytes / bandwidth by
the experiment all_reduce. For more ranks than that measured, a ring: latency grows with n - 1, bytes with (n - 1)/n.
Between nodes: by a network measured between two, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfscribe.analytic.peaks import mfu, peak_flops
from perfscribe.analytic.weak_scaling import efficiency_percent, inverted_percent, scale_factors, step_flop
from perfscribe.experiments.all_reduce import fits
from perfscribe.experiments.node_network import ALL_REDUCE, EXPERIMENT, Network
from perfscribe.records.records import Record
from perfscribe.show import tables as t
from perfscribe.training.launching import shape_of

GATHER, REDUCE = "all_gather", "reduce_scatter"
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
STATE_BYTES = 16  # of a parameter: fp32 weight and gradient, AdamW's two moments
DEFAULT = "default"
MIB = 2**20

PREDICTED, MEASURED = "predicted", "measured"
NO_GPU, NO_NVML = "not counted on a CPU", "NVML does not tell"
NOT_TRAINED = "none: predicted"
NO_BASE = "no row with one rank"
NO_NETWORK = "no network measured"
TWO_STEPS = "too few steps"
GPU_FIGURES = ("avg_gpu_util_%", "avg_mem_alloc_MB", "avg_mem_total_MB", "peak_mem_alloc_MB")
CALLBACK, STEPPING = "train/samples_per_second_mean", "stepping_samples_per_second"
AGAINST = ("samples_scale", "runtime_scale", "efficiency", "runtime_efficiency", "inverted", "work_efficiency")
# Of a predicted row what needs a time of its collectives.
OF_A_STEP = ("train_runtime_s", "train_samples_per_second", STEPPING, "apart_ms", *AGAINST)
SCALED = ("placement", "nodes", "world_size", "wrap")  # what differs between a row and its base


def nodes_of(record: Record) -> int:
    """How many nodes the row's ranks are on."""
    return int(record.factors["nodes"])


def ranks_per_node(record: Record) -> int:
    """Ranks on each node."""
    return int(record.factors["world_size"]) // nodes_of(record)


def step_ms(record: Record) -> float | None:
    """Median time of an optimizer step; None where too few were timed."""
    return t.summary(record, "step_ms").median if any(record.samples.get("step_ms", [])) else None


def steps_of(record: Record) -> int:
    """Optimizer steps of the whole training."""
    factors = record.factors
    batches = -(-factors["train_size"] // (factors["batch_size"] * factors["world_size"]))
    return int(factors["num_epochs"] * -(-batches // factors["grad_acc"]))


def flop_per_rank(factors: Mapping[str, Any]) -> int:
    """Of one rank in a full optimizer step."""
    tokens = factors["batch_size"] * factors["grad_acc"] * factors["max_length"]
    return step_flop(shape_of(factors), tokens, factors["max_length"])


@dataclass(frozen=True)
class Ring:
    """Latency and time a byte of one collective, measured or carried over from fewer ranks."""

    latency_ms: float
    ms_per_byte: float

    def carried(self, few: int, many: int) -> Ring:
        """From the links of some ranks to those of others."""
        steps, share = (many - 1) / (few - 1), ((many - 1) / many) / ((few - 1) / few)
        return Ring(self.latency_ms * steps, self.ms_per_byte * share)

    def time_ms(self, whole_bytes: float) -> float:
        """Of one call with so many bytes in the whole array."""
        return self.latency_ms + self.ms_per_byte * whole_bytes


class Links:
    """What collectives cost, as all_reduce measured it; between nodes, as communication_nodes did."""

    def __init__(self, records: Iterable[Record], network: Network | None = None) -> None:
        self._lines = fits.lines(records)
        self._network = network or Network({})

    @classmethod
    def of(cls, records: Mapping[str, list[Record]]) -> Links:
        """From the records of the experiments that measured links, as far as they are there."""
        return cls(records.get(ALL_REDUCE, []), Network.of(records.get(EXPERIMENT, [])))

    def between_nodes(self, operation: str, backend: str, ranks: int) -> Ring | None:
        """Of ranks on several nodes: a ring passes each node's link once, whose bandwidth was measured; latency as
        within a node. None where no network was: the loopback interface is none."""
        own, rate = self.ring(operation, backend, ranks), self._network.bus_gb_per_s.get(backend)
        if own is None or rate is None:
            return None
        return Ring(own.latency_ms, max(own.ms_per_byte, (ranks - 1) / ranks / rate * 1e-6))

    def ring(self, operation: str, backend: str, ranks: int) -> Ring | None:
        """By the line of the nearest number of ranks; by that of all-reduce, half of it, where there is no other."""
        for taken, part in ((operation, 1.0), (ALL_REDUCE, 0.5)):  # an all-reduce is both of the others
            found = {
                key[4]: line
                for key, line in self._lines.items()
                if (key[0], key[1], key[3]) == (taken, backend, DEFAULT) and key[4] > 1
            }
            if found:
                nearest = min(found, key=lambda measured: (abs(measured - ranks), -measured))
                fit = found[nearest].fit
                own = Ring(part * 1e3 * max(0.0, fit.alpha_s), part * 1e3 * max(0.0, fit.beta_s_per_byte))
                return own if nearest == ranks else own.carried(nearest, ranks)
        return None


def communication_ms(factors: Mapping[str, Any], links: Links) -> float | None:
    """All collectives of an optimizer step, one after the other; None where no links were measured.

    FSDP2's blocks are freed after forward and gathered again for backward; the root, with FSDP1 all of the model, is
    kept in between. Gradients are reduced with the last accumulated batch.
    """
    ranks = factors["world_size"]
    if factors["wrap"] == "none" or ranks == 1:
        return 0.0
    ring = links.between_nodes if factors["nodes"] > 1 else links.ring
    gather, reduce = (ring(operation, factors["backend"], ranks) for operation in (GATHER, REDUCE))
    if gather is None or reduce is None:
        return None
    shape, batches, low = shape_of(factors), factors["grad_acc"], DTYPE_BYTES[factors["dtype"]]
    reduced = 4 if factors["loop"] == "tuned" else low
    layers = shape.num_layers if factors["wrap"] == "FSDP2" else 0
    outside = shape.parameters - layers * shape.block_parameters
    spent_ms = 0.0
    for parameters, gathers in [(shape.block_parameters, 2 * batches)] * layers + [(outside, batches)]:
        spent_ms += gathers * gather.time_ms(low * parameters) + reduce.time_ms(reduced * parameters)
    return spent_ms


def predict(
    base: Mapping[str, Any], base_ms: float, factors: Mapping[str, Any], links: Links
) -> tuple[float, float] | None:
    """Milliseconds that a step of these factors computes and communicates, from one that took base_ms with others.

    None: no links were measured.
    """
    own, of_base = communication_ms(factors, links), communication_ms(base, links)
    if own is None or of_base is None:
        return None
    return max(0.0, base_ms - of_base) * flop_per_rank(factors) / flop_per_rank(base), own


def rows(records: Sequence[Record], links: Links) -> list[Record]:
    """Each record with its figures beside its base's; behind one that was not measured its prediction, where there is
    a base and links were measured."""
    found = []
    for record in records:
        same = [one for one in records if one.ok and one.origin == MEASURED and _same_way(record, one)]
        found += with_prediction(record, same, links)
    measured = [one for one in found if one.ok and one.origin == MEASURED]
    for record in found:
        if record.ok:
            base = _fewest_ranks(one for one in measured if _same_way(record, one))
            bare = [
                r
                for r in measured
                if r.factors["loop"] == "bare loop" and _same_setting(record, r, ("loop", "save_strategy"))
            ]
            record.values |= _rates(record, base, bare)
    return found


def with_prediction(record: Record, same: Sequence[Record], links: Links) -> list[Record]:
    """The record with its figures, and its prediction behind it where it has none.

    same: the measured trainings of the same setting.
    """
    base, source = _fewest_ranks(same), nearest(record, same, links)
    found = [_with_figures(record, base)]
    if not record.ok and base is not None and source is not None:
        found += _predicted_row(record, base, source, links)
    return found


def by_placement(every: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """The rows of one node; and those of several: a single rank first, then, by ranks on each, more and more nodes."""
    one = [record for record in every if nodes_of(record) == 1]
    several = [record for record in every if nodes_of(record) > 1]
    ways = list(dict.fromkeys(_way(record) for record in several))
    filled = {(_way(record), ranks) for record in several for ranks in (1, ranks_per_node(record))}
    wraps = {record.factors["wrap"] for record in several} | {"none"}
    of_these = [record for record in one if record.factors["wrap"] in wraps]
    first = [record for record in of_these if (_way(record), ranks_per_node(record)) in filled]
    return one, sorted([*first, *several], key=lambda r: (ways.index(_way(r)), ranks_per_node(r), nodes_of(r)))


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
    return nodes_of(record) > 1 and communication_ms(one.factors, links) is not None


def _same_setting(record: Record, other: Record, apart: Sequence[str] = SCALED) -> bool:
    """Whether the two differ in nothing but these factors."""
    names = set(record.factors) | set(other.factors)
    return all(record.factors.get(name) == other.factors.get(name) for name in names - set(apart))


def _same_way(record: Record, other: Record) -> bool:
    """Whether the two are also divided alike, or one of them by nothing."""
    ways = {one.factors["wrap"] for one in (record, other)} - {"none"}
    return _same_setting(record, other) and len(ways) < 2


def _fewest_ranks(same: Iterable[Record]) -> Record | None:
    return min(same, key=lambda one: one.factors["world_size"], default=None)


def _way(record: Record) -> tuple[str, str]:
    return record.factors["backend"], record.factors["loop"]


def _with_figures(record: Record, base: Record | None) -> Record:
    """The record with texts where a figure cannot be, scale factors, efficiencies and MFU."""
    if not record.ok:
        return record
    absent = NO_GPU if record.factors["device"] == "cpu" else NO_NVML
    lacking = dict.fromkeys(GPU_FIGURES, absent) | dict.fromkeys((CALLBACK, STEPPING), TWO_STEPS)
    found = replace(record, values=lacking | record.values)
    found.values |= _against(found, base) | _mfu(found)
    return found


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
    own_ms, base_ms = record.values.get("apart_ms") or step_ms(record), step_ms(base)
    if own_ms is None or base_ms is None:
        return values | {"efficiency": TWO_STEPS, "work_efficiency": TWO_STEPS}
    values["efficiency"] = efficiency_percent(base_ms, own_ms)
    values["work_efficiency"] = values["efficiency"] * (_flop(record) / _flop(base))
    return values


def _rates(record: Record, base: Record | None, bare: Sequence[Record]) -> dict[str, Any]:
    """Samples/s of a rank, steps alone, over the base's; the step over that of the bare loop on as many ranks."""
    values: dict[str, Any] = {"rate_efficiency": NO_BASE, "over_bare": "no bare loop beside it"}
    if base is not None:
        own, of_base = record.values.get(STEPPING), base.values.get(STEPPING)
        values["rate_efficiency"] = TWO_STEPS if own != NO_NETWORK else NO_NETWORK
        if isinstance(own, float) and isinstance(of_base, float):
            ranks = record.factors["world_size"] / base.factors["world_size"]
            values["rate_efficiency"] = 100 * own / of_base / ranks
    if record.factors["loop"] == "tuned":
        values["over_bare"] = "another batch"
    elif record.origin == MEASURED and bare and (own_ms := step_ms(record)) and (bare_ms := step_ms(bare[0])):
        values["over_bare"] = own_ms / bare_ms
    return values


def _flop(record: Record) -> float:
    """Of a rank in an optimizer step, with the batch that a tuned loop has found."""
    size = record.values.get("batch_found", record.factors["batch_size"])
    return flop_per_rank({**record.factors, "batch_size": size})


def _mfu(record: Record) -> dict[str, Any]:
    if record.factors["device"] == "cpu":
        return {"mfu": "no peak known for a CPU"}
    ms, peak = step_ms(record), peak_flops(record.gpu, record.factors["dtype"]) if record.gpu else None
    if ms is None:
        return {"mfu": TWO_STEPS}
    share = mfu(_flop(record), ms / 1e3, peak)
    return {"mfu": "no peak known for this GPU" if share is None else 100 * share}


def _predicted_row(record: Record, base: Record, source: Record, links: Links) -> list[Record]:
    """The row that the record would be, as far as arithmetic goes; none without links.

    base: what it is compared with. source: what its step is made of. On several nodes without a network measured
    between any, it has memory alone.
    """
    source_ms = step_ms(source) or 0.0
    guess = predict(source.factors, source_ms, record.factors, links)
    if guess is None and (nodes_of(record) == 1 or communication_ms(source.factors, links) is None):
        return []
    untrained = (*GPU_FIGURES, CALLBACK, STEPPING, "train_loss", "wrapped_by", "units", "mfu")
    values: dict[str, Any] = dict.fromkeys(untrained, NOT_TRAINED)
    values |= {"parameters": shape_of(record.factors).parameters, "rows_from": source.values["rows_from"]}
    values |= {name: source.values[name] for name in ("batch_found",) if name in source.values}
    values |= _predicted_memory(record, source)
    cleared: dict[str, Any] = {"samples": {}, "warmup": {}, "series": {}, "flags": []}
    made = replace(source, factors=dict(record.factors), origin=PREDICTED, values=values, **cleared)
    if guess is None:
        values |= dict.fromkeys(OF_A_STEP, NO_NETWORK)
        return [made]
    values |= _times(record, source, sum(guess), source_ms)
    values |= _against(made, base)
    return [made]


def _times(record: Record, source: Record, predicted_ms: float, source_ms: float) -> dict[str, float]:
    """Step, rates and runtime of a predicted row: its steps, and all else that the source's runtime holds."""
    rest_s = max(0.0, source.values["train_runtime_s"] - steps_of(source) * source_ms / 1e3)
    runtime = steps_of(record) * predicted_ms / 1e3 + rest_s
    batch = source.values.get("batch_found", record.factors["batch_size"])  # the step predicted has as many rows
    per_step = batch * record.factors["grad_acc"] * record.factors["world_size"]
    # By how much a mean step is longer than the median one: a measured rate is of all steps, the slow ones too.
    rate = source.values.get("stepping_steps/s")
    longer = 1e3 / rate / source_ms if isinstance(rate, float) else 1.0
    return {
        "apart_ms": predicted_ms,
        "train_runtime_s": runtime,
        "train_samples_per_second": record.factors["train_size"] * record.factors["num_epochs"] / runtime,
        STEPPING: per_step / predicted_ms * 1e3 / longer,
    }


def _predicted_memory(record: Record, base: Record) -> dict[str, float]:
    """The base's peak and memory at rest, with each rank's part of weights, gradients and AdamW's moments in place of
    the base's; what is gathered meanwhile is not in it."""
    own, of_base = shape_of(record.factors).parameters, shape_of(base.factors).parameters
    ranks = base.factors["world_size"] if base.factors["wrap"] != "none" else 1
    less_mib = STATE_BYTES * (of_base / ranks - own / record.factors["world_size"]) / MIB
    found = {}
    for name, share in (("avg_mem_alloc_MB", 0.75), ("peak_mem_alloc_MB", 1.0)):  # at rest gradients are gone
        held = base.values.get(name)
        if isinstance(held, (int, float)):
            found[name] = max(0.0, held - share * less_mib)
    return found
