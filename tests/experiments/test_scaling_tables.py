"""The FSDP workshop's trainings: their cells, and what a step is predicted to communicate."""

from __future__ import annotations

from typing import Any

import pytest
from workspace import ROOT

from perfscribe import config
from perfscribe.experiments import training_rows as r
from perfscribe.plan import plan
from perfscribe.records.records import Record

RAW = config.load(ROOT / "config.yaml")


# Beside what the workshop has: one way to divide, and sizes that the figures below are of.
OWN: dict[str, dict[str, Any]] = {
    "multi_gpu": {"wrap": ["FSDP2"], "num_epochs": 1},
    "custom_multi_gpu": {"wrap": ["FSDP2"], "vocab_size": 50_000, "grad_acc": 4},
    "weak_scaling": {"wrap": "FSDP2", "vocab_size": 50_000, "train_size": 400},
}


def cells(experiment: str, own: Any = OWN) -> list:
    return plan.planned_cells(RAW | {"experiments": RAW["experiments"] | own}, experiment, "gpu")


def line(operation: str, ranks: int, latency_us: float, gb_per_s: float) -> list[Record]:
    """All_reduce's records of one way, exactly on a line."""
    found = []
    for size in (2**10, 2**20, 2**30):
        factors = {"operation": operation, "backend": "nccl", "device": "cuda", "transport": "default"}
        factors |= {"world_size": ranks, "megabyte": "2^20", "size_mb": size / 2**20}
        ms = latency_us / 1e3 + size / gb_per_s / 1e6
        found.append(
            Record("all_reduce", factors, "ok", "", "measured", {"time_ms": [[ms]]}, values={"message_bytes": size})
        )
    return found


LINKS = [
    *line("all_gather", 2, 10, 200),
    *line("all_gather", 4, 20, 250),
    *line("reduce_scatter", 2, 10, 200),
    *line("reduce_scatter", 4, 20, 250),
]


# --- cells ------------------------------------------------------------------------------------------------------


def test_the_gpu_preset_is_the_workshops() -> None:
    bloom, own, weak = (cells(name, {}) for name in ("multi_gpu", "custom_multi_gpu", "weak_scaling"))
    ways = [(c["world_size"], c["wrap"]) for c in bloom if c["placement"] == "one node"]
    assert sorted(ways) == [(1, "none"), *((n, wrap) for n in (2, 4, 8) for wrap in ("FSDP1", "FSDP2"))]
    assert [c["world_size"] for c in bloom if c["placement"] == "one rank a node"] == [2, 4, 8]
    full = [c for c in bloom if c["placement"] == "4 ranks a node"]
    assert [(c["nodes"], c["world_size"]) for c in full] == [(2, 8), (4, 16), (8, 32)]
    assert {"nodes:4", "cuda:4"} <= set(full[1].requires)
    assert [(c["world_size"], c["nodes"]) for c in weak][:4] == [(2, 1), (4, 1), (8, 1), (16, 2)]
    for cell in (*bloom, *own):
        if cell["loop"] != "tuned":
            assert (cell["train_size"], cell["eval_size"], cell["max_length"]) == (500, 100, 512)
            grad_acc = 4 if cell in bloom else 1
            assert (cell["batch_size"], cell["grad_acc"], cell["dtype"]) == (1, grad_acc, "fp16")
            assert (cell["learning_rate"], cell["weight_decay"], cell["num_epochs"]) == (5e-5, 0.01, 5)
        assert cell["save_strategy"] == ("epoch" if cell["loop"] == "trainer" else "no")
        assert (cell["wrap"] == "none") == (cell["world_size"] == 1 and cell["loop"] != "tuned")
        assert cell["nodes"] == 1 or cell["wrap"] == "FSDP1"  # as the workshop's settings took effect
    shapes = {tuple(c[n] for n in ("vocab_size", "hidden_size", "num_layers", "num_heads", "ffn")) for c in own}
    assert shapes == {(250_680, 2048, 3, 16, 8192)}
    (first,) = [c for c in weak if c["world_size"] == 2]
    assert first["variants"] == "source; same model; deeper, equal work"  # one training, measured once
    asked = {(c["world_size"], c["num_layers"], c["batch_size"]) for c in weak if "source" in c["variants"]}
    assert asked == {(2, 3, 8), (4, 6, 4), (8, 12, 2), (16, 24, 1)}


# --- prediction -------------------------------------------------------------------------------------------------


def test_collectives_of_a_step_by_hand() -> None:
    every = [dict(c.factors) for c in cells("custom_multi_gpu", {})]
    two = [one for one in every if (one["world_size"], one["loop"], one["nodes"]) == (2, "trainer", 1)]
    block, outside = 50_358_272, 250_680 * 2048 + 250_680
    by_wrap = {"FSDP1": (2, 2 * (3 * block + outside)), "FSDP2": (3 * 3 + 2, 3 * 3 * block + 2 * outside)}
    assert {one["wrap"] for one in two} == set(by_wrap)
    for factors in two:
        calls, moved = by_wrap[factors["wrap"]]
        expected = pytest.approx(calls * 0.010 + 2 * moved / 200e6, rel=1e-6)
        assert r.communication_ms(factors, r.Links(LINKS)) == expected


def test_links_among_other_ranks_and_of_other_collectives() -> None:
    links = r.Links(LINKS)
    four, eight = (links.ring("all_gather", "nccl", ranks) for ranks in (4, 8))
    assert four is not None and eight is not None
    assert four.latency_ms == pytest.approx(0.020, rel=1e-6)
    assert eight.latency_ms == pytest.approx(0.020 * 7 / 3, rel=1e-6)
    assert eight.ms_per_byte == pytest.approx(four.ms_per_byte * (7 / 8) / (3 / 4))
    half = r.Links(line("all_reduce", 2, 100, 5)).ring("all_gather", "nccl", 2)
    assert half is not None and half.time_ms(0) == pytest.approx(0.05, rel=1e-6)
    assert links.ring("all_gather", "gloo", 2) is None
