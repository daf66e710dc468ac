"""scaling_model: records of a known model give its terms back; what lacks says what; the figure follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import unmeasured
from matplotlib import pyplot as plt

from perfscribe.analytic.workshop_shapes import SimpleGptShape
from perfscribe.experiments.ddp import variants as v
from perfscribe.experiments.node_network import Network
from perfscribe.experiments.scaling_model import show, trainings
from perfscribe.records.records import Record

HOP_MS, GB_PER_S = 0.01, 100.0
MB = 2**20
PARTS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
SHAPE = SimpleGptShape(vocab_size=1000, hidden_size=512, num_layers=4, num_heads=8, ffn=2048)
COMPUTE_MS, BATCH = 3.0, 64


def collective_ms(operation: str, ranks: int, size: float, algorithm: str = "tree") -> float:
    hops = math.ceil(math.log2(ranks)) if algorithm == "tree" else ranks - 1
    return PARTS[operation] * (hops * HOP_MS + (ranks - 1) / ranks * size / GB_PER_S * 1e-6)


def collectives(
    counts: Sequence[int] = (2, 4, 8), algorithm: str = "tree", backend: str = "nccl", logged: str = ""
) -> list[Record]:
    """logged: the algorithm that NCCL says, where it is not that of the times."""
    found = []
    for operation in PARTS:
        for ranks in counts:
            for size_mb in (0.001, 0.1, 1, 10, 100, 1024):
                size = round(size_mb * MB)
                factors = {"operation": operation, "backend": backend, "transport": "default", "world_size": ranks}
                factors |= {"size_mb": size_mb, "device": "cuda", "grid": "sizes", "megabyte": "2^20"}
                values = {"message_bytes": size, "megabyte_bytes": MB, "algorithm": logged or algorithm.upper()}
                samples = {"time_ms": [[collective_ms(operation, ranks, size, algorithm)] * 3]}
                found.append(Record("all_reduce", factors, "ok", "", "measured", samples, values=values))
    return found


def fsdp_ms(ranks: int, overlap: float, compute_ms: float = COMPUTE_MS) -> float:
    """Blocks gathered twice and reduced, the rest gathered once and reduced, in fp32, one batch a step."""
    if ranks == 1:
        return compute_ms
    outside = SHAPE.parameters - SHAPE.num_layers * SHAPE.block_parameters
    units = [(SHAPE.block_parameters, 2)] * SHAPE.num_layers + [(outside, 1)]
    spent = sum(
        gathers * collective_ms("all_gather", ranks, 4 * count) + collective_ms("reduce_scatter", ranks, 4 * count)
        for count, gathers in units
    )
    return compute_ms + spent - overlap * min(compute_ms, spent)


def training(ranks: int, step_ms: float, **more: Any) -> Record:
    factors = {
        "placement": "one node",
        "nodes": 1,
        "world_size": ranks,
        "backend": "nccl",
        "loop": "trainer",
        "device": "cuda",
    }
    factors |= {"model_name": "simple_gpt", "wrap": "FSDP2" if ranks > 1 else "none", "dtype": "fp32", **vars(SHAPE)}
    factors |= {"batch_size": 8, "grad_acc": 1, "max_length": 128, **more}
    samples = {"step_ms": [[0.99 * step_ms, step_ms, 1.01 * step_ms]]}
    return Record("custom_multi_gpu", factors, "ok", "", "measured", samples, environments=["abc"])


def sharded(overlap: float, counts: Sequence[int] = (1, 2, 4, 8), **more: Any) -> list[Record]:
    return [training(ranks, fsdp_ms(ranks, overlap), **more) for ranks in counts]


GRADIENT_BYTES, CALLS = 400 * MB, 10
FIXED_MS, DIVIDED_MS = 40.0, 800.0


def replicated(overlap: float, counts: Sequence[int] = (2, 4, 8, 16), batch: int = BATCH) -> list[Record]:
    """Data-parallel cells with one implementation, 10 buckets, a step with and without communication."""
    variant, found = v.Variant(v.BUCKETED, 40), []
    for ranks in counts:
        compute = FIXED_MS + DIVIDED_MS / ranks
        spent = CALLS * collective_ms("all_reduce", ranks, GRADIENT_BYTES / CALLS)
        step = compute + spent - overlap * min(compute, spent)
        factors = {"size": "xl", "seq_len": 128, "batch": batch, "world_size": ranks, "backend": "nccl"}
        factors |= {"dtype": "fp32", "device": "cuda", "variants": v.as_level([variant]), "turns": 6, "traced": False}
        samples = {f"{variant.key}_step_ms": [[step] * 6], f"{variant.key}_off_ms": [[compute] * 6]}
        values = {"gradient_bytes": GRADIENT_BYTES, f"{variant.key}_all_reduces": CALLS}
        found.append(Record("ddp", factors, "ok", "", "measured", samples, values=values))
    return found


def shown(links: list[Record], **records: list[Record]) -> pd.DataFrame:
    """The rows of the table; its figure is drawn."""
    (table,) = show.tables({"all_reduce": links, **records})
    for figure in show.figures({table.id: table}):
        canvas = plt.figure(figsize=figure.size_in)
        figure.draw(canvas)
        plt.close(canvas)
    return table.frame


def model_of(training: trainings.Training, links: list[Record]) -> show.Model:
    found = show.model_of(training, trainings.ModelledLinks(links))
    assert found is not None
    return found


# --- a known model is recovered ---------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [0.0, 0.5])
def test_terms_and_overlap_of_fsdp_are_recovered(overlap: float) -> None:
    (one,) = trainings.fsdp(sharded(overlap))
    made = model_of(one, collectives())
    assert made.overlap == pytest.approx(overlap, abs=1e-8) and made.left_out() == pytest.approx(0, abs=1e-8)
    steps = shown(collectives(), custom_multi_gpu=sharded(overlap)).set_index("ranks")
    assert set(steps["holds"]) == {"yes"}
    assert list(steps.index) == [2**k for k in range(11)]
    assert list(steps["origin"]) == ["measured"] * 4 + ["predicted"] * 7
    assert list(steps["reach"]) == ["measured"] * 4 + ["predicted"] * 3 + ["model only"] * 4
    assert list(steps["links"]) == ["this machine's"] * 4 + ["assumed as here"] * 7
    for ranks in (16, 128, 1024):
        assert steps.loc[ranks, "step_ms"] == pytest.approx(fsdp_ms(ranks, overlap))
        assert steps.loc[ranks, "samples_per_s"] == pytest.approx(8 * ranks / fsdp_ms(ranks, overlap) * 1e3)
        assert steps.loc[ranks, "weak_percent"] == pytest.approx(100 * COMPUTE_MS / fsdp_ms(ranks, overlap))


def test_terms_and_overlap_of_data_parallelism_are_recovered() -> None:
    steps = shown(collectives((2, 4, 8, 16)), ddp=replicated(0.6)).set_index("ranks")
    assert set(steps["holds"]) == {"yes"}
    compute = FIXED_MS + DIVIDED_MS / 32
    spent = CALLS * collective_ms("all_reduce", 32, GRADIENT_BYTES / CALLS)
    step = compute + spent - 0.6 * min(compute, spent)
    assert steps.loc[32, "step_ms"] == pytest.approx(step)
    assert steps.loc[32, "strong_percent"] == pytest.approx(100 * (FIXED_MS + DIVIDED_MS) / 32 / step)
    assert steps.loc[8, "measured_percent"] == pytest.approx(
        100 * 2 * steps.loc[2, "step_ms"] / 8 / steps.loc[8, "step_ms"]
    )


def test_what_cannot_be_told_of_data_parallelism() -> None:
    """More ranks than rows; and of two counts the larger from the smaller, which does not tell computing's parts."""
    steps = shown(collectives(), ddp=replicated(0.6, (2, 4), batch=16)).set_index("ranks")
    assert isinstance(steps.loc[16, "step_ms"], float) and steps.loc[32, "step_ms"] == "none: 16 rows"
    assert steps.loc[1024, "strong_percent"] == "none: 16 rows" and steps.loc[1024, "weak_percent"] < 100
    assert set(steps["holds"]) == {"cannot tell"}


def test_only_the_quickest_implementation_is_predicted() -> None:
    slow, quick = v.Variant(v.FLAT), v.Variant(v.BUCKETED, 40)
    both = []
    for cell in replicated(0.6, (2, 4)):
        samples = dict(cell.samples)
        for name in ("step_ms", "off_ms"):
            samples[f"{slow.key}_{name}"] = [[1.5 * one for one in samples[f"{quick.key}_{name}"][0]]]
        for name in ("communication_ms", "marked_step_ms"):
            samples[f"{slow.key}_{name}"] = [[5.0] * 6]
        values = {**cell.values, f"{slow.key}_all_reduces": 1}
        factors = {**cell.factors, "variants": v.as_level([slow, quick])}
        both.append(replace(cell, samples=samples, values=values, factors=factors))
    (name,) = set(shown(collectives(), ddp=both)["training"])
    assert name == "ddp, xl, 64 x 128, overlap_bucketed 40 MB, fp32, cuda"


def test_steps_of_unequal_rows_are_brought_to_the_firsts() -> None:
    one, four = sharded(0.0, (1, 4))
    one.values["batch_found"], four.values["batch_found"] = 100, 200
    four.samples["step_ms"] = [[2 * fsdp_ms(4, 0.0)]]
    got = shown(collectives(), custom_multi_gpu=[one, four])
    steps = got.set_index("ranks")
    assert steps.loc[4, "step_ms"] == pytest.approx(fsdp_ms(4, 0.0))
    assert steps.loc[4, "samples_per_s"] == pytest.approx(400 / fsdp_ms(4, 0.0) * 1e3)
    assert steps.loc[4, "flags"] == "step of 200 rows a rank, scaled to 100", "what was not measured so is marked"
    assert steps.loc[1, "flags"] == ""


# --- how far, and how sure --------------------------------------------------------------------------------------


def test_a_network_that_was_measured_bounds_the_ranks_beyond() -> None:
    links = trainings.ModelledLinks(collectives(), Network({"nccl": 10.0}))
    within, beyond = (links.ring("all_reduce", "nccl", ranks) for ranks in (8, 16))
    assert within is not None and within.time_ms(MB) == pytest.approx(collective_ms("all_reduce", 8, MB))
    assert beyond is not None
    assert beyond.time_ms(1024 * MB) == pytest.approx(2 * 15 / 16 * 1024 * MB / 10 * 1e-6 + 8 * HOP_MS)
    assert [links.named("nccl", ranks) for ranks in (8, 16)] == ["this machine's", "measured network"]


# --- what the terms do not explain ------------------------------------------------------------------------------


def test_a_model_that_misses_what_was_measured_predicts_nothing() -> None:
    """Steps on 2 and 4 ranks of three times their terms: on 8 there is no step of once these."""
    slow = [training(ranks, fsdp_ms(ranks, 0.0) * (1 if ranks == 1 else 3)) for ranks in (1, 2, 4)]
    got = shown(collectives(), custom_multi_gpu=slow)
    steps = got
    beyond, there = steps[steps["origin"] == "predicted"], steps[steps["origin"] == "measured"]
    for name in ("step_ms", "model_ms", "samples_per_s", "weak_percent", "strong_percent"):
        assert set(beyond[name]) == {"none: terms miss the measured steps"}
    assert list(there["step_ms"]) == [one.samples["step_ms"][0][1] for one in slow], "what was measured stays"
    assert all(isinstance(one, float) for one in there["residual_percent"][1:])
    assert set(steps["holds"]) == {"no"}


def test_a_base_that_communicates_is_missed_by_an_overlap_that_others_ask_for() -> None:
    """Computing is then what two ranks take beside communicating as if nothing were hidden; overlap hides it there."""
    steps = {2: 10.0, 4: 7.0}
    got = shown(collectives(), custom_multi_gpu=[training(ranks, ms) for ranks, ms in steps.items()])
    shown_by = got.set_index("ranks")
    off = 100 * (shown_by.loc[2, "step_ms"] / shown_by.loc[2, "model_ms"] - 1)
    assert off > 10 and shown_by.loc[2, "residual_percent"] == pytest.approx(off)
    assert set(shown_by["holds"]) == {"no"}
    assert shown_by.loc[8, "step_ms"] == "none: terms miss the measured steps"
    alone = shown(collectives(), custom_multi_gpu=sharded(1.0, (1, 2, 4)))
    assert alone["residual_percent"].iloc[0] == "0: computing is taken from it"
    apart = shown(collectives(), custom_multi_gpu=sharded(0.0, (2, 4)))
    assert apart.set_index("ranks").loc[2, "residual_percent"] == "0: computing is taken from it"


def test_the_largest_count_left_out_uses_no_collective_of_it() -> None:
    """Collectives among 8 that take ten times as long are no part of what is predicted for 8 from 2 and 4."""
    odd = [r for r in collectives() if r.factors["world_size"] < 8]
    for record in (r for r in collectives() if r.factors["world_size"] == 8):
        odd.append(replace(record, samples={"time_ms": [[10 * record.samples["time_ms"][0][0]]]}))
    (one,) = trainings.fsdp(sharded(0.5))
    made = model_of(one, odd)
    assert made.left_out() == pytest.approx(0, abs=1e-9) and abs(made.residual(8) or 0) > 0.01


# --- what is missing --------------------------------------------------------------------------------------------


def test_ranks_on_nodes_of_their_own_are_no_part_of_one_machines_training() -> None:
    (one,), more = sharded(0.5, (1,)), sharded(0.5, (2, 4))
    assert trainings.fsdp([one, *sharded(0.5, (2, 4), placement="2 ranks a node", nodes=2)]) == []
    assert [found.counts for found in trainings.fsdp([one, *more])] == [[1, 2, 4]]


@pytest.mark.parametrize("status", ["skipped", "oom"])
def test_cells_without_figures_and_links_say_why(status: str) -> None:
    records = {name: unmeasured.records(name, status) for name in unmeasured.sources("scaling_model")}
    frame = shown(records.pop("all_reduce"), **records)
    assert len(frame) and set(frame["status"]) == {status}
    row = shown(collectives(backend="gloo"), custom_multi_gpu=sharded(0.5)).iloc[0]
    assert row["status"] == "not_run" and row["reason"].startswith("no collective among several processes")
    two = [training(1, COMPUTE_MS), Record("custom_multi_gpu", training(2, 1.0).factors, status, "why", "measured")]
    steps = shown(collectives(), custom_multi_gpu=two).set_index("ranks")
    assert steps.loc[2, "step_ms"] == pytest.approx(fsdp_ms(2, 0.0)), "one count alone: nothing overlaps"
