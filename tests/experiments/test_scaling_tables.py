"""The FSDP workshop's trainings: their cells."""

from __future__ import annotations

from workspace import ROOT

from perfscribe import config
from perfscribe.plan import plan

RAW = config.load(ROOT / "config.yaml")


def cells(experiment: str) -> list:
    return plan.planned_cells(RAW, experiment, "gpu")


def test_the_gpu_preset_is_the_workshops() -> None:
    bloom, own, weak = (cells(name) for name in ("multi_gpu", "custom_multi_gpu", "weak_scaling"))
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
