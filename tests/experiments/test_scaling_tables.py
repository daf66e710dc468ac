"""The FSDP workshop's scaling tables, from records made by hand: its columns, predicted rows, figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from matplotlib import pyplot as plt
from workspace import ROOT

from perfscribe import config
from perfscribe.experiments import training_rows as r
from perfscribe.experiments.custom_multi_gpu import show as custom
from perfscribe.experiments.multi_gpu import show as multi
from perfscribe.experiments.node_network import Network
from perfscribe.experiments.weak_scaling import show as weak
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.show.tables import Table
from perfscribe.training.launching import shape_of

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


def gpu_record(experiment: str, cell: Any, step_ms: float, **values: Any) -> Record:
    """A cell as four H200s would have it: more GPUs are skipped, as are several nodes."""
    factors = dict(cell.factors)
    if factors["nodes"] > 1 or factors["world_size"] > 4:
        reason = "1 node" if factors["nodes"] > 1 else "4 GPUs"
        return Record(experiment, factors, "skipped", reason, "measured")
    figures = {
        "train_runtime_s": 10 * step_ms / 1e3 + 1,
        "train_samples_per_second": 40 / (step_ms / 1e3),
        "train/samples_per_second_mean": 30 / (step_ms / 1e3),
        "stepping_steps/s": 1000 / step_ms,
        "stepping_samples_per_second": 4 * factors["world_size"] / (step_ms / 1e3),
        "train_loss": 5.0,
        "parameters": shape_of(factors).parameters,
        "wrapped_by": factors["wrap"],
        "units": 4,
        "rows_from": "generated",
        "avg_gpu_util_%": 90.0,
    }
    figures |= {"avg_mem_alloc_MB": 4000.0, "peak_mem_alloc_MB": 8000.0, "avg_mem_total_MB": 10000.0}
    samples = {"step_ms": [[step_ms - 1, step_ms, step_ms + 1]]}
    return Record(experiment, factors, "ok", "", "measured", samples, values=figures | values, gpu="NVIDIA H200")


def by_ranks(cell: Any) -> float:
    """A step that grows with ranks; that of the bare loop is shorter, the tuned one's longer."""
    base = {"trainer": 100.0, "bare loop": 80.0, "tuned": 200.0}[cell["loop"]]
    return base * (1 + 0.1 * (cell["world_size"] - 1))


def records_of(experiment: str, step_of: Any = by_ranks) -> list[Record]:
    more = {"batch_found": 320}
    return [
        gpu_record(experiment, cell, step_of(cell), **(more if cell["loop"] == "tuned" else {}))
        for cell in cells(experiment)
    ]


def shown(
    module: Any, experiment: str, records: list[Record], links: list[Record] = LINKS, nodes: Any = ()
) -> dict[str, Table]:
    read = {experiment: records, "all_reduce": links, "communication_nodes": list(nodes)}
    made = {table.id: table for table in module.tables(read)}
    assert tuple(made) == module.SHOWN.tables
    for figure in module.figures(made):
        canvas = plt.figure()
        figure.draw(canvas)
        plt.close(canvas)
    return made


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


# --- tables -----------------------------------------------------------------------------------------------------


def test_bloom_with_a_predicted_row_for_eight_gpus() -> None:
    records = records_of("multi_gpu")
    assert set(shown(multi, "multi_gpu", records, [])["fsdp.multi_gpu"].frame["origin"]) == {"measured"}
    got = shown(multi, "multi_gpu", records)
    frame = got["fsdp.multi_gpu"].frame
    assert list(frame["setup"]) == ["Single Node with Single GPU", "2 GPUs", "4 GPUs", "8 GPUs", "8 GPUs"]
    assert list(frame["origin"]) == ["measured"] * 4 + ["predicted"]
    assert list(frame["status"]) == ["ok", "ok", "ok", "skipped", "ok"]
    assert frame["reason"][3] == "4 GPUs"
    assert frame["train_loss"][4] == "none: predicted"
    assert frame["samples_scale"][1] == pytest.approx(100 / 110)
    assert frame["runtime_scale"][1] == pytest.approx(2.0 / 2.1)
    assert frame["step_ms"][4] > 100
    steps = 16  # of an epoch on eight GPUs
    assert frame["train_runtime_s"][4] == pytest.approx(steps * frame["step_ms"][4] / 1e3, abs=0.2)
    nodes = got["fsdp.multi_node"].frame
    full = ["4 GPUs", *[f"{n} Node, 4 GPUs each" for n in (2, 2, 4, 4, 8, 8)]]
    assert list(nodes["setup"]) == ["Single Node with Single GPU", *[f"{n} Node" for n in (2, 2, 4, 4, 8, 8)], *full]
    assert list(nodes["nodes"]) == [1, 2, 2, 4, 4, 8, 8] * 2 and nodes["world_size"].iloc[-1] == 32
    assert set(nodes["reason"][nodes["status"] == "skipped"]) == {"1 node"}
    beyond = nodes[nodes["origin"] == "predicted"]
    for name in ("step_ms", "samples_scale", "train_runtime_s", "stepping_samples_per_second"):
        assert set(beyond[name]) == {"no network measured"}, "loopback is no network"
    assert all(isinstance(one, float) for one in beyond["peak_mem_alloc_gb"]), "what a rank holds is known all the same"


def network(gb_per_s: float) -> Record:
    """Communication_nodes' record of gradients sent at this rate between two ranks, whose bus factor is one."""
    factors = {"part": "placements", "tool": "torch_profiler", "backend": "nccl", "active": 2, "world_size": 2}
    transfer_ms = 2 * 10**9 / gb_per_s * 1e-6
    samples = {"inter_transfer_ms": [[transfer_ms] * 3]}
    return Record("communication_nodes", factors, "ok", "", "measured", samples, values={"gradient_bytes": 10**9})


def communicated_ms(nodes: int, world_size: int) -> float:
    """What a step among so many ranks communicates."""
    known = next(dict(c.factors) for c in cells("multi_gpu") if (c["nodes"], c["world_size"]) == (nodes, world_size))
    links = r.Links(LINKS, Network.of([network(10)]))
    return r.communication_ms(known, links) or 0.0


def test_several_nodes_are_predicted_by_a_network_that_was_measured() -> None:
    assert communicated_ms(2, 2) > 5 * communicated_ms(1, 2), "10 GB/s in place of 200"
    rows = shown(multi, "multi_gpu", records_of("multi_gpu"), nodes=[network(10)])["fsdp.multi_node"].frame
    (two,) = rows[(rows["setup"] == "2 Node") & (rows["origin"] == "predicted")].to_dict("records")
    assert two["step_ms"] == pytest.approx(110.0 - communicated_ms(1, 2) + communicated_ms(2, 2))


def on_nodes(step_of: Any) -> list[Record]:
    """Four GPUs of one node, and two nodes: steps in ms by nodes and ranks on each; none is skipped."""

    def there(cell: Any) -> Record:
        each = cell["world_size"] // cell["nodes"]
        if cell["nodes"] > 2 or each > 4:
            return gpu_record("multi_gpu", cell, 1.0)
        alike = next(c for c in cells("multi_gpu") if c["world_size"] == 1)
        found = gpu_record("multi_gpu", alike, step_of(cell["nodes"], each))
        return replace(found, factors=dict(cell.factors))

    return [there(cell) for cell in cells("multi_gpu")]


def predicted(got: dict[str, Table], table: str) -> Any:
    """Its predicted rows by set-up."""
    rows = got[table].frame
    return rows[rows["origin"] == "predicted"].set_index("setup")


def test_rows_are_predicted_from_those_with_as_many_ranks_on_a_node() -> None:
    """Four ranks on a node take each other's cores: a node with one rank has nothing of that."""
    got = shown(multi, "multi_gpu", on_nodes(lambda nodes, each: 200.0 * each + 300.0 * nodes), nodes=[network(10)])
    rows = predicted(got, "fsdp.multi_node")
    for each, setup in ((1, "4 Node"), (4, "4 Node, 4 GPUs each")):
        computing = 200.0 * each + 600.0 - communicated_ms(2, 2 * each)
        assert rows.loc[setup, "step_ms"] == pytest.approx(computing + communicated_ms(4, 4 * each))
    eight = predicted(got, "fsdp.multi_gpu").loc["8 GPUs", "step_ms"]
    assert eight == pytest.approx(1100.0 - communicated_ms(1, 4) + communicated_ms(1, 8))


def test_one_node_is_not_predicted_from_several() -> None:
    """What a network costs says nothing of one node."""
    links = r.Links(LINKS, Network.of([network(10)]))
    every = on_nodes(lambda nodes, each: 200.0 * each + 300.0 * nodes)
    (one,) = (record for record in every if record.ok and r.nodes_of(record) == 1 and record.factors["world_size"] == 2)
    several = [record for record in every if record.ok and r.nodes_of(record) == 2]
    assert several and r.nearest(one, several, links) is None and r.nearest(several[0], [one], links) is one


def test_custom_model_and_its_loops() -> None:
    got = shown(custom, "custom_multi_gpu", records_of("custom_multi_gpu"))
    table = got["fsdp.custom_multi_gpu"]
    rows = table.frame
    assert set(rows["vocab_size"]) == {50_000} and set(rows["parameters"][rows["status"] == "ok"]) == {253_524_816}
    assert list(rows["optimizer_steps"]) == [5 * steps for steps in (125, 63, 32, 16, 16)]
    assert set(table.frame["loop"]) == {"trainer"}
    assert table.frame["avg_mem_alloc_gb"][0] == pytest.approx(4000 / 1024)
    loops = got["fsdp.custom_loops"].frame
    trainer = loops[(loops["loop"] == "trainer") & (loops["world_size"] == 2) & (loops["status"] == "ok")].iloc[0]
    assert trainer["over_bare"] == pytest.approx(110 / 88)
    assert trainer["efficiency"] == pytest.approx(100 / 1.1)
    tuned = loops[(loops["loop"] == "tuned") & (loops["world_size"] == 1)].iloc[0]
    flop = r.flop_per_rank({**records_of("custom_multi_gpu")[0].factors, "batch_size": 320, "grad_acc": 1})
    assert tuned["mfu"] == pytest.approx(100 * flop / 0.2 / 989e12)
    assert tuned["batch"] == 320
    more = loops[(loops["loop"] == "tuned") & (loops["origin"] == "predicted")].iloc[0]
    assert more["batch"] == 320  # those of the step that is predicted, in its rate too
    rows = 320 * more["world_size"]
    assert more["stepping_samples_per_second"] == pytest.approx(rows / more["step_ms"] * 1e3)


def test_weak_scaling_divides_the_right_way() -> None:
    def step_of(cell: Any) -> float:
        return 100.0 if cell["world_size"] == 2 else 125.0

    got = shown(weak, "weak_scaling", records_of("weak_scaling", step_of))
    frame = got["fsdp.weak_scaling"].frame
    source = frame[(frame["variant"] == "source") & (frame["world_size"] == 4)].iloc[0]
    assert source["efficiency"] == pytest.approx(80)
    assert source["inverted"] == pytest.approx(100 * 2.25 / 2.0)
    assert source["runtime_efficiency"] == pytest.approx(100 * 2.0 / 2.25)
    assert source["work_efficiency"] == pytest.approx(80 * 5.12 / 6.38, rel=0.01)
    same = frame[(frame["variant"] == "same model") & (frame["world_size"] == 4)].iloc[0]
    assert same["work_efficiency"] == same["efficiency"]
    assert list(frame[frame["variant"] == "source"]["origin"]) == ["measured"] * 3 + [
        "predicted",
        "measured",
        "predicted",
    ]
    setup = got["fsdp.weak_setup"].frame
    assert set(setup["status"]) == {"ok"}  # by arithmetic, whatever could be measured
    rows = setup[setup["variant"] == "source"]
    assert list(rows["parameters"]) == [253_524_816, 404_599_632, 706_749_264, 1_311_048_528]
    assert list(rows["ran_parameters"]) == [664_718_136, 815_792_952, 1_117_942_584, 1_722_241_848]
    assert list(rows["ran_steps"]) == [200, 100, 50, 25]
    assert list(rows["total_batch"]) == [16] * 4


def test_the_runtime_of_the_same_model_is_compared_by_its_steps() -> None:
    """On 4 ranks the same rows are half as many steps: as long a run is half as efficient, not twice."""
    frame = shown(weak, "weak_scaling", records_of("weak_scaling", lambda cell: 100.0))["fsdp.weak_scaling"]
    rows = frame.frame[frame.frame["status"] == "ok"].set_index(["variant", "world_size"])
    assert rows.loc[("source", 4), "runtime_efficiency"] == 100, "its batch is divided"
    assert rows.loc[("same model", 4), "runtime_efficiency"] == pytest.approx(100 * 13 / 25)
    assert rows.loc[("same model", 4), "inverted"] == pytest.approx(100 * 25 / 13)
    assert rows.loc[("same model", 8), "runtime_efficiency"] < 60, "predicted, by as many steps"


def test_the_host_s_part_of_a_sharded_step_stays_in_what_is_predicted_from_it() -> None:
    """A step on one GPU takes 100 ms, on 2 and 4 with FSDP 300: eight take no less, whatever one alone needs."""
    every = r.rows(records_of("multi_gpu", lambda cell: 100.0 if cell["world_size"] == 1 else 300.0), r.Links(LINKS))
    predicted = next(one for one in every if one.origin == "predicted" and one.factors["placement"] == "one node")
    assert 300 < predicted.values["apart_ms"] < 400
    state_mib = 16 * 559_214_592 * (1 / 4 - 1 / 8) / 2**20  # of the four ranks that it is predicted from
    assert predicted.values["peak_mem_alloc_MB"] == pytest.approx(8000 - state_mib)
    assert predicted.values["train/samples_per_second_mean"] == "none: predicted", "its clock holds the evaluation"


def test_predicted_rates_are_of_a_mean_step_as_measured_ones_are() -> None:
    """Mean steps a quarter longer than medians: a longer step on more ranks is no better an efficiency."""

    def uneven(cell: Any) -> Record:
        record = gpu_record("custom_multi_gpu", cell, by_ranks(cell))
        for name in ("stepping_samples_per_second", "stepping_steps/s"):
            if record.ok:
                record.values[name] /= 1.0 if cell["world_size"] == 1 else 1.25
        return record

    got = shown(custom, "custom_multi_gpu", [uneven(cell) for cell in cells("custom_multi_gpu")])
    rows = got["fsdp.custom_loops"].frame
    trainer = rows[(rows["loop"] == "trainer") & (rows["status"] == "ok")].set_index("world_size")
    assert trainer.loc[8, "step_ms"] > trainer.loc[4, "step_ms"]
    assert trainer.loc[8, "efficiency"] < trainer.loc[4, "efficiency"]
