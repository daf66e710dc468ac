"""scaling_model: records of a known model give its terms back; what lacks says what; the figure follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest
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


def collective_ms(operation: str, ranks: int, size: float) -> float:
    hops = math.ceil(math.log2(ranks))  # of a tree
    return PARTS[operation] * (hops * HOP_MS + (ranks - 1) / ranks * size / GB_PER_S * 1e-6)


def collectives(counts: Sequence[int] = (2, 4, 8)) -> list[Record]:
    found = []
    for operation in PARTS:
        for ranks in counts:
            for size_mb in (0.001, 0.1, 1, 10, 100, 1024):
                size = round(size_mb * MB)
                factors = {"operation": operation, "backend": "nccl", "transport": "default", "world_size": ranks}
                factors |= {"size_mb": size_mb, "device": "cuda", "grid": "sizes", "megabyte": "2^20"}
                values = {"message_bytes": size, "algorithm": "TREE"}
                samples = {"time_ms": [[collective_ms(operation, ranks, size)] * 3]}
                found.append(Record("all_reduce", factors, "ok", "", "measured", samples, values=values))
    return found


def fsdp_ms(ranks: int, overlap: float) -> float:
    """Blocks gathered twice and reduced, the rest gathered once and reduced, in fp32, one batch a step."""
    if ranks == 1:
        return COMPUTE_MS
    outside = SHAPE.parameters - SHAPE.num_layers * SHAPE.block_parameters
    units = [(SHAPE.block_parameters, 2)] * SHAPE.num_layers + [(outside, 1)]
    spent = sum(
        gathers * collective_ms("all_gather", ranks, 4 * count) + collective_ms("reduce_scatter", ranks, 4 * count)
        for count, gathers in units
    )
    return COMPUTE_MS + spent - overlap * min(COMPUTE_MS, spent)


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
    found = show.model_of(training, trainings.Links(links))
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


# --- how far, and how sure --------------------------------------------------------------------------------------


def test_a_network_that_was_measured_bounds_the_ranks_beyond() -> None:
    links = trainings.Links(collectives(), Network({"nccl": 10.0}))
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
