"""Columns of strategies' tables that say what a wrapped model is, and what that changes."""

from __future__ import annotations

from typing import Any

from perfscribe import tables as t
from perfscribe.counters import fsdp_memory
from perfscribe.experiments.strategies.columns import (
    APIS,
    PREFETCHES,
    STRATEGIES,
    WRAPPINGS,
    gib,
    named,
    others,
    plan,
    predicted,
    samples_per_s,
    sent,
    times,
)
from perfscribe.records import Record
from perfscribe.tables import Column

LOOKED_AT = 4  # steps before the warm-up: the first loss, DDP's buckets, traffic, memory


def _applied(name: str, title: str, words: dict[Any, str] | None = None) -> Column:
    def get(record: Record) -> Any:
        found = record.values[f"applied_{name}"]
        return words[found] if words else found

    return t.derived(f"applied_{name}", title, get, exact=True)


def _mesh(record: Record) -> str:
    return f"{record.values['applied_replicas']} × {record.values['applied_shards']}"


def _computes_in(record: Record) -> Any:
    """What FSDP gathers in; of what gathers nothing, in what it computes: in fp32 there is no autocast."""
    found, dtype = record.values["applied_dtype"], record.factors["dtype"]
    return dtype if found == "autocast" and dtype == "fp32" else found


def _last_step(record: Record) -> int:
    """How many steps the plan has taken with that of its last loss, which comes after the timed ones.

    KeyError: it has no last loss.
    """
    _ = record.values["last_loss"]
    return int(LOOKED_AT + record.factors["warmup_steps"] + record.factors["timed_steps"] + 1)


def _loss(name: str, title: str) -> Column:
    return t.derived(name, title, lambda record: f"{record.values[name]:.5g}", exact=True)


def took_effect() -> list[Column]:
    """What the wrapped model was found to be."""
    return [
        *plan(),
        _applied("wrapper", "Wrapped by"),
        _applied("strategy", "It is", STRATEGIES),
        t.derived("mesh", "Copies × shards", _mesh, exact=True),
        _applied("units", "Units"),
        t.derived("applied_dtype", "Gathers or computes in", _computes_in, exact=True),
        _applied("reduce_dtype", "Reduces in"),
        _applied("checkpointed", "Blocks checkpointed"),
        t.value("collectives", "Collectives a step", exact=True),
        _loss("first_loss", "First loss"),
        _loss("last_loss", "Last loss"),
        t.derived("last_step", "of step", _last_step, exact=True),
        t.value("loss_scale", "Loss scale", exact=True),
    ]


def world_of_one() -> list[Column]:
    """What sharding among one rank is."""
    return [
        *plan(),
        _applied("strategy", "It is", STRATEGIES),
        t.derived("mesh", "Copies × shards", _mesh, exact=True),
        t.value("collectives", "Collectives a step", exact=True),
        gib("gathered_most", "Copied for the last block (GiB)"),
        gib("state", "State (GiB)"),
        t.value("state_device", "It lies on", exact=True),
        gib("peak_allocated", "Peak allocated (GiB)"),
        t.rate("samples_per_s", "Samples/s", samples_per_s, "step_ms"),
        t.count("step_ms"),
    ]


def wrapping() -> list[Column]:
    """Variants in turns."""
    return [
        t.factor("model", "Model"),
        t.factor("world_size", "Ranks"),
        t.factor("dtype", "Dtype"),
        named("api", "By", APIS),
        named("wrapping", "Wrapping", WRAPPINGS),
        named("prefetch", "Prefetch", PREFETCHES),
        _applied("units", "Units"),
        *times("Turns"),
        Column(
            "ratio",
            "Time over per block, implicit (×)",
            lambda r: r.values["ratio"],
            spread="ratio_spread",
            spread_get=lambda r: r.values["ratio_spread"],
        ),
        t.value("interval", "95 % interval", exact=True),
        t.value("verdict", "It is", exact=True),
        Column("units_verdict", "units_verdict", lambda record: record.values["units_verdict"], kind="unshown"),
        gib("peak_allocated", "Peak allocated (GiB)"),
        others(),
        predicted("largest_unit_gib", "Largest unit, predicted (GiB)", fsdp_memory.largest_unit_bytes),
        gib("gathered_most", "Gathered in the last block (GiB)"),
        gib("gathered_between", "Gathered between forward and backward (GiB)"),
        *sent(),
        t.value("collectives", "Collectives a step", exact=True),
        t.timer("step_ms"),
    ]
