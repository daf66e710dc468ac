"""scaling_model: records of a known model give its terms back; what lacks says what; figures and sentences follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import unmeasured
from matplotlib import pyplot as plt

from perfscribe.experiments.ddp import variants as v
from perfscribe.experiments.scaling_model import links as of_links
from perfscribe.experiments.scaling_model import model, present, trainings
from perfscribe.models.workshop_shapes import SimpleGptShape
from perfscribe.records import Record

HOP_MS, GB_PER_S = 0.01, 100.0
MB = 2**20
PARTS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
SHAPE = SimpleGptShape(vocab_size=1000, hidden_size=512, num_layers=4, num_heads=8, ffn=2048)
COMPUTE_MS, BATCH = 3.0, 64
Shown = dict[str, Any]


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
    factors = {"placement": "one node", "world_size": ranks, "backend": "nccl", "loop": "trainer", "device": "cuda"}
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


def shown(links: list[Record], **records: list[Record]) -> Shown:
    made = {table.id: table for table in present.tables({"all_reduce": links, **records})}
    assert tuple(made) == present.TABLES
    findings = {finding.id: finding for finding in present.findings(made)}
    for figure in present.figures(made):
        canvas = plt.figure(figsize=figure.size_in)
        figure.draw(canvas)
        plt.close(canvas)
    return {"tables": made, "findings": findings}


def frame(got: Shown, name: str) -> Any:
    return got["tables"][name].frame


# --- a known model is recovered ---------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_terms_and_overlap_of_fsdp_are_recovered(overlap: float) -> None:
    got = shown(collectives(), custom_multi_gpu=sharded(overlap))
    (row,) = frame(got, "fsdp.scaling_terms").to_dict("records")
    assert row["overlap_percent"] == pytest.approx(100 * overlap, abs=1e-6) and row["compute_ms"] == COMPUTE_MS
    assert row["points"] == 3 and abs(row["worst_percent"]) < 1e-6 and abs(row["left_out_percent"]) < 1e-6
    assert row["holds"] == "yes" and row["fixed_ms"] == "not told apart"
    steps = frame(got, "fsdp.scaling_predicted").set_index("ranks")
    for ranks in (16, 128, 1024):
        assert steps.loc[ranks, "step_ms"] == pytest.approx(fsdp_ms(ranks, overlap))
        assert steps.loc[ranks, "samples_per_s"] == pytest.approx(8 * ranks / fsdp_ms(ranks, overlap) * 1e3)
        assert steps.loc[ranks, "weak_percent"] == pytest.approx(100 * COMPUTE_MS / fsdp_ms(ranks, overlap))


def test_terms_and_overlap_of_data_parallelism_are_recovered() -> None:
    got = shown(collectives((2, 4, 8, 16)), ddp=replicated(0.6))
    (row,) = frame(got, "fsdp.scaling_terms").to_dict("records")
    assert row["overlap_percent"] == pytest.approx(60) and row["fixed_ms"] == pytest.approx(FIXED_MS)
    assert row["points"] == 4 and abs(row["left_out_percent"]) < 1e-6 and row["holds"] == "yes"
    steps = frame(got, "fsdp.scaling_predicted").set_index("ranks")
    compute = FIXED_MS + DIVIDED_MS / 32
    spent = CALLS * collective_ms("all_reduce", 32, GRADIENT_BYTES / CALLS)
    step = compute + spent - 0.6 * min(compute, spent)
    assert steps.loc[32, "step_ms"] == pytest.approx(step)
    assert steps.loc[32, "strong_percent"] == pytest.approx(100 * (FIXED_MS + DIVIDED_MS) / 32 / step)
    assert steps.loc[8, "measured_percent"] == pytest.approx(
        100 * 2 * steps.loc[2, "step_ms"] / 8 / steps.loc[8, "step_ms"]
    )


def test_strong_scaling_ends_where_ranks_outnumber_rows() -> None:
    got = shown(collectives(), ddp=replicated(0.6, (2, 4), batch=16))
    steps = frame(got, "fsdp.scaling_predicted").set_index("ranks")
    assert isinstance(steps.loc[16, "step_ms"], float) and steps.loc[32, "step_ms"] == "none: 16 rows"
    assert steps.loc[1024, "strong_percent"] == "none: 16 rows" and steps.loc[1024, "weak_percent"] < 100


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
    got = shown(collectives(), ddp=both)
    assert len(frame(got, "fsdp.scaling_terms")) == 2
    (name,) = set(frame(got, "fsdp.scaling_predicted")["training"])
    assert name == "ddp, xl, 64 x 128, overlap_bucketed 40 MB, fp32, cuda"


def test_steps_of_unequal_rows_are_brought_to_the_firsts() -> None:
    one, four = sharded(0.0, (1, 4))
    one.values["batch_found"], four.values["batch_found"] = 100, 200
    four.samples["step_ms"] = [[2 * fsdp_ms(4, 0.0)]]
    got = shown(collectives(), custom_multi_gpu=[one, four])
    steps = frame(got, "fsdp.scaling_predicted").set_index("ranks")
    assert steps.loc[4, "step_ms"] == pytest.approx(fsdp_ms(4, 0.0))
    assert steps.loc[4, "samples_per_s"] == pytest.approx(400 / fsdp_ms(4, 0.0) * 1e3)
    assert steps.loc[4, "flags"] == "step of 200 rows a rank, scaled to 100", "what was not measured so is marked"
    assert steps.loc[1, "flags"] == ""


# --- how far, and how sure --------------------------------------------------------------------------------------


def test_rows_say_what_is_measured_predicted_and_model_only() -> None:
    got = shown(collectives((2, 4)), custom_multi_gpu=sharded(0.5, (1, 2, 4)))
    steps = frame(got, "fsdp.scaling_predicted")
    assert list(steps["ranks"]) == [2**k for k in range(11)]
    assert list(steps["origin"]) == ["measured"] * 3 + ["predicted"] * 8
    assert list(steps["reach"]) == ["measured"] * 3 + ["predicted"] * 3 + ["model only"] * 5
    assert set(steps["band"]) == {"none: 2 of 4 points"}
    assert list(steps["residual_percent"][3:]) == ["not measured"] * 8
    assert list(steps["links"]) == ["this machine's"] * 3 + ["assumed as here"] * 8
    messages = frame(got, "cs336.collectives_predicted")
    largest = messages[messages["size_mb"] == 1024]
    assert list(largest["ranks"]) == [2**k for k in range(1, 11)]
    assert list(largest["reach"]) == ["measured"] * 2 + ["predicted"] * 3 + ["model only"] * 5
    assert "No network was measured" in got["findings"]["cs336.collectives_predicted"].text


def test_a_band_stands_from_four_points_on() -> None:
    noise = {1: 1.0, 2: 1.02, 4: 0.98, 8: 1.01, 16: 0.99}
    every = [training(ranks, fsdp_ms(ranks, 0.5) * off) for ranks, off in noise.items()]
    for number, has_band in ((4, False), (5, True)):
        steps = frame(shown(collectives(), custom_multi_gpu=every[:number]), "fsdp.scaling_predicted")
        told = steps[steps["ranks"] == 32].iloc[0]
        assert (" to " in told["band"]) is has_band
        if has_band:
            low, high = map(float, told["band"].split(" to "))
            assert low < told["model_ms"] < high and low < fsdp_ms(32, 0.5) < high


def test_messages_far_larger_than_measured_are_model_only() -> None:
    small = [record for record in collectives() if record.factors["size_mb"] <= 10]
    messages = frame(shown(small), "cs336.collectives_predicted")
    assert set(messages[messages["size_mb"] == 1024]["reach"]) == {"model only"}
    assert set(messages[messages["size_mb"] == 10]["reach"]) == {"measured", "predicted", "model only"}


def test_the_sentence_names_the_sizes_that_were_measured_alone() -> None:
    """What is off among other sizes says nothing of those that are named."""
    few = [record for record in collectives() if record.factors["size_mb"] <= 10]
    for record in few:
        if record.factors["size_mb"] == 10:
            record.samples["time_ms"] = [[3 * one for one in record.samples["time_ms"][0]]]
    text = shown(few)["findings"]["cs336.collectives_predicted"].text
    told = frame(shown(few), "cs336.collectives_predicted")
    off = told[(told["size_mb"] == 1) & (told["reach"] == "measured")]["residual_percent"].astype(float).abs()
    off_it = f"{off.min():.0f} to {off.max():.0f} % off it; "
    assert f"; those of 1 MB that were measured, among 2, 4 and 8 processes, are {off_it}" in text
    assert "; no message of 1024 MB was measured. " in text
    assert "no message" not in shown(collectives())["findings"]["cs336.collectives_predicted"].text


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_the_algorithm_is_told_and_predicts(algorithm: str) -> None:
    got = shown(collectives(algorithm=algorithm, logged="RING"))
    (row,) = frame(got, "cs336.collectives_terms").query("operation == 'all_reduce'").to_dict("records")
    assert row["chosen"] == algorithm and row[f"{algorithm}_hop_us"] == pytest.approx(1e3 * HOP_MS)
    assert row["bus_gb_per_s"] == pytest.approx(GB_PER_S) and row["logged"] == "RING"
    messages = frame(got, "cs336.collectives_predicted").set_index(["size_mb", "ranks"])
    assert messages.loc[(1, 1024), "time_ms"] == pytest.approx(collective_ms("all_reduce", 1024, MB, algorithm))
    text = got["findings"]["cs336.collectives_algorithm"].text
    assert f"2, 4, 8 processes a {algorithm}" in text and ("log says ring all the same" in text) is (
        algorithm == "tree"
    )


def test_times_never_fall_with_ranks() -> None:
    got = shown(collectives(), custom_multi_gpu=sharded(0.7))
    for table, by in (("cs336.collectives_predicted", "size_mb"), ("fsdp.scaling_predicted", "training")):
        for _, rows in frame(got, table).groupby(by):
            assert list(rows["model_ms"]) == sorted(rows["model_ms"])
    weak = list(frame(got, "fsdp.scaling_predicted")["weak_percent"])
    assert weak == sorted(weak, reverse=True)


def test_a_network_that_was_measured_bounds_the_ranks_beyond() -> None:
    factors = {"part": "placements", "tool": "torch_profiler", "backend": "nccl", "active": 2, "world_size": 2}
    transfer_ms = 2 * 10**9 / 10 * 1e-6  # 2 x 1 GB at 10 GB/s, the bus factor of two ranks being 1
    nodes = Record("communication_nodes", factors, "ok", "", "measured", {"inter_transfer_ms": [[transfer_ms] * 3]})
    nodes.values["gradient_bytes"] = 10**9
    without, beside = (shown(collectives(), **more) for more in ({}, {"communication_nodes": [nodes]}))
    one, other = (
        frame(got, "cs336.collectives_predicted").set_index(["size_mb", "ranks"]) for got in (without, beside)
    )
    assert other.loc[(1024, 8), "model_ms"] == pytest.approx(one.loc[(1024, 8), "model_ms"])
    expected = 2 * 15 / 16 * 1024 * MB / 10 * 1e-6 + 8 * HOP_MS
    assert other.loc[(1024, 16), "model_ms"] == pytest.approx(expected)
    assert other.loc[(1024, 16), "links"] == "measured network"
    assert "that of the measured network" in beside["findings"]["cs336.collectives_predicted"].text


# --- what the terms do not explain ------------------------------------------------------------------------------


def test_steps_longer_than_their_terms_allow_no_conclusion() -> None:
    slow = [training(ranks, fsdp_ms(ranks, 0.0) * (1 if ranks == 1 else 3)) for ranks in (1, 2, 4)]
    got = shown(collectives(), custom_multi_gpu=slow)
    (row,) = frame(got, "fsdp.scaling_terms").to_dict("records")
    assert row["holds"] == "no" and row["overlap_percent"] == 0 and row["asked_percent"] < 0
    assert row["worst_percent"] == pytest.approx(200)
    text = got["findings"]["fsdp.scaling_terms"].text
    assert (
        "explain the measured steps of 0 of 1 training, which takes two tests: they give each step within 10 %" in text
    )
    assert "Of the 1 whose counts allow the second test 0 pass it" in text and "missing may be of the host" in text
    limits = got["findings"]["fsdp.scaling_limits"]
    assert limits.verdict == "cannot tell" and "the terms explain and foretell: 0 measured" in limits.text


def test_a_model_that_misses_what_was_measured_predicts_nothing() -> None:
    """Steps on 2 and 4 ranks of three times their terms: on 8 there is no step of once these."""
    slow = [training(ranks, fsdp_ms(ranks, 0.0) * (1 if ranks == 1 else 3)) for ranks in (1, 2, 4)]
    got = shown(collectives(), custom_multi_gpu=slow)
    steps = frame(got, "fsdp.scaling_predicted")
    beyond, there = steps[steps["origin"] == "predicted"], steps[steps["origin"] == "measured"]
    for name in ("step_ms", "model_ms", "samples_per_s", "weak_percent", "strong_percent", "limit", "band"):
        assert set(beyond[name]) == {"none: terms miss the measured steps"}
    assert list(there["step_ms"]) == [one.samples["step_ms"][0][1] for one in slow], "what was measured stays"
    assert all(isinstance(one, float) for one in there["residual_percent"][1:])
    assert "without limits" not in got["findings"]["fsdp.scaling_terms"].text
    (note,) = [note for note in got["tables"]["fsdp.scaling_predicted"].notes if "So the two differ" in note]
    assert "what the host adds included" in note


def test_a_base_that_communicates_is_missed_by_an_overlap_that_others_ask_for() -> None:
    """Computing is then what two ranks take beside communicating as if nothing were hidden; overlap hides it there."""
    steps = {2: 10.0, 4: 7.0}
    got = shown(collectives(), custom_multi_gpu=[training(ranks, ms) for ranks, ms in steps.items()])
    rows = frame(got, "fsdp.scaling_predicted").set_index("ranks")
    off = 100 * (rows.loc[2, "step_ms"] / rows.loc[2, "model_ms"] - 1)
    assert off > 10 and rows.loc[2, "residual_percent"] == pytest.approx(off)
    (row,) = frame(got, "fsdp.scaling_terms").to_dict("records")
    assert abs(row["worst_percent"]) >= off and row["holds"] == "no"
    assert rows.loc[8, "step_ms"] == "none: terms miss the measured steps"
    alone = frame(shown(collectives(), custom_multi_gpu=sharded(1.0, (1, 2, 4))), "fsdp.scaling_predicted")
    assert alone["residual_percent"].iloc[0] == "0: computing is taken from it"
    apart = frame(shown(collectives(), custom_multi_gpu=sharded(0.0, (2, 4))), "fsdp.scaling_predicted")
    assert apart.set_index("ranks").loc[2, "residual_percent"] == "0: computing is taken from it"


def test_an_efficiency_says_how_far_from_what_was_measured_it_is() -> None:
    text = shown(collectives(), custom_multi_gpu=sharded(0.9))["findings"]["fsdp.scaling_limits"].text
    assert "weak efficiency 91 % on 1024 (model only), strong efficiency 91 % on 1024 (model only)." in text


def test_steps_that_fit_two_counts_alone_are_not_called_explained() -> None:
    got = shown(collectives(), ddp=replicated(0.6, (2, 4)))
    text = got["findings"]["fsdp.scaling_terms"].text
    assert "explain the measured steps of 0 of 1 training" in text and "Of 1 more the residuals are as small" in text
    limits = got["findings"]["fsdp.scaling_limits"]
    assert limits.verdict == "cannot tell" and "efficiency" not in limits.text


def test_serial_fractions_beyond_0_and_1_are_none_and_say_why() -> None:
    slower = [training(ranks, 3.0 * ranks**2) for ranks in (1, 2)]
    (row,) = frame(shown(collectives(), custom_multi_gpu=slower), "fsdp.scaling_terms").to_dict("records")
    assert row["serial_percent"] == "none: more ranks were slower"
    assert row["holds"] == "no", "one step that its terms miss is enough, with no smaller count to foretell it"
    quick = [training(ranks, 3.0 / ranks) for ranks in (1, 2)]
    got = shown(collectives(), custom_multi_gpu=quick)
    (row,) = frame(got, "fsdp.scaling_terms").to_dict("records")
    assert row["serial_percent"] == "none: more than linear"
    assert got["findings"]["fsdp.scaling_textbook"].verdict == "cannot tell"
    both = shown(collectives(), custom_multi_gpu=quick, ddp=replicated(0.0))["findings"]["fsdp.scaling_textbook"].text
    assert "Of no use are the laws for custom_multi_gpu, trainer, fp32, cuda (none: more than linear)" in both


def test_one_smaller_count_cannot_foretell_data_parallelism() -> None:
    got = shown(collectives(), ddp=replicated(0.6, (2, 4)))
    (row,) = frame(got, "fsdp.scaling_terms").to_dict("records")
    assert abs(row["worst_percent"]) < 1e-6 and row["left_out_percent"] == "none: too few are left"
    assert row["holds"] == "cannot tell"
    text = got["findings"]["fsdp.scaling_terms"].text
    assert "None has counts that allow the second test." in text and "which nothing measured confirms" in text


def test_the_largest_count_left_out_uses_no_collective_of_it() -> None:
    """Collectives among 8 that take ten times as long are no part of what is predicted for 8 from 2 and 4."""
    odd = [r for r in collectives() if r.factors["world_size"] < 8]
    for record in (r for r in collectives() if r.factors["world_size"] == 8):
        odd.append(replace(record, samples={"time_ms": [[10 * record.samples["time_ms"][0][0]]]}))
    (one,) = trainings.fsdp(sharded(0.5))
    made = model.model_of(one, of_links.ModelledLinks(odd))
    assert made is not None and made.left_out() == pytest.approx(0, abs=1e-9) and abs(made.residual(8) or 0) > 0.01


def test_where_half_the_efficiency_is_gone() -> None:
    got = shown(collectives(), ddp=replicated(0.0, (2, 4, 8)))
    steps = frame(got, "fsdp.scaling_predicted")
    strong = steps[[isinstance(one, float) for one in steps["strong_percent"]]]
    first = strong[strong["strong_percent"].astype(float) < 50].iloc[0]["ranks"]
    assert f"strong efficiency below 50 % from {first} on" in got["findings"]["fsdp.scaling_limits"].text
    text = got["findings"]["fsdp.scaling_textbook"].text
    assert "(Karp and Flatt)" in text and "where the model has" in text


# --- what is missing --------------------------------------------------------------------------------------------


def test_without_links_a_training_has_no_model() -> None:
    got = shown(collectives(backend="gloo"), custom_multi_gpu=sharded(0.5))
    row = frame(got, "fsdp.scaling_terms").iloc[0]
    assert row["status"] == "not_run" and row["reason"].startswith("no collective among several processes")
    finding = got["findings"]["fsdp.scaling_terms"]
    assert finding.verdict == "cannot tell" and "trainings on several numbers of ranks: 0 measured" in finding.text


def test_without_trainings_there_are_collectives_alone() -> None:
    got = shown(collectives())
    assert frame(got, "fsdp.scaling_terms").empty and len(frame(got, "cs336.collectives_predicted")) == 40
    verdicts = {name: finding.verdict for name, finding in got["findings"].items()}
    assert [name for name, verdict in verdicts.items() if verdict == "cannot tell"] == [
        "fsdp.scaling_terms",
        "fsdp.scaling_limits",
        "fsdp.scaling_textbook",
    ]


@pytest.mark.parametrize(
    ("logged", "assumed"),
    [("RING", "ring: by NCCL's log"), ("TREE", "tree: by NCCL's log"), ("NVLS", "ring: not judged by two counts")],
)
def test_two_counts_of_collectives_leave_the_algorithm_to_the_log(logged: str, assumed: str) -> None:
    got = shown(collectives((2, 4), "tree", logged=logged))
    assert set(frame(got, "cs336.collectives_terms")["chosen"]) == {assumed}
    said = got["findings"]["cs336.collectives_algorithm"]
    assert said.verdict == "cannot tell" and f"nccl among 2, 4 processes, {assumed}" in said.text
    far = frame(got, "cs336.collectives_predicted").query("size_mb == 1 and ranks == 1024").iloc[0]
    assert far["model_ms"] == far[f"{assumed.partition(':')[0]}_ms"]
    text = got["findings"]["cs336.collectives_predicted"].text
    assert " ms by a tree to " in text and f"assumed is the {assumed.partition(':')[0]}, " in text


def test_a_backend_that_is_judged_stands_beside_one_that_is_not() -> None:
    got = shown([*collectives((2, 4), logged="RING"), *collectives((2, 4, 6), "ring", "gloo")])
    said = got["findings"]["cs336.collectives_algorithm"]
    assert said.verdict == "answered" and "gloo among 2, 4, 6 processes a ring" in said.text
    assert "nccl among 2, 4 processes, ring: by NCCL's log" in said.text


def test_notes_explain_what_their_table_has() -> None:
    notes = " ".join(shown(collectives())["tables"]["cs336.collectives_predicted"].notes)
    assert "Band" not in notes and notes.count("Model only") == 1 and "Links assumed as here" in notes


def test_one_count_of_collectives_judges_no_algorithm() -> None:
    got = shown(collectives((2,), logged="NVLS"), custom_multi_gpu=sharded(0.5, (1, 2)))
    assert set(frame(got, "cs336.collectives_terms")["chosen"]) == {"ring: not judged by one count"}
    assert got["findings"]["cs336.collectives_algorithm"].verdict == "cannot tell"
    (row,) = frame(got, "fsdp.scaling_terms").to_dict("records")
    assert row["left_out_percent"] == "none: too few are left" and row["holds"] == "cannot tell"


def test_one_count_of_a_training_is_its_terms_alone() -> None:
    two = [training(1, COMPUTE_MS), Record("custom_multi_gpu", training(2, 1.0).factors, "oom", "no room", "measured")]
    got = shown(collectives(), custom_multi_gpu=two)
    (row,) = frame(got, "fsdp.scaling_terms").to_dict("records")
    assert row["overlap_percent"] == "none: no step that communicates" and row["points"] == 0
    steps = frame(got, "fsdp.scaling_predicted").set_index("ranks")
    assert steps.loc[2, "step_ms"] == pytest.approx(fsdp_ms(2, 0.0)), "nothing overlaps"
    assert steps.loc[2, "band"] == "none: 0 of 4 points"


def test_ranks_on_nodes_of_their_own_are_no_part_of_one_machines_training() -> None:
    (one,) = sharded(0.5, (1,))
    for placement, nodes in (("one rank a node", {}), ("2 ranks a node", {"nodes": 2}), ("one node", {"nodes": 2})):
        placed = {"placement": placement, **nodes}
        apart = [replace(row, factors={**row.factors, **placed}) for row in sharded(0.5, (2, 4))]
        assert trainings.fsdp([one, *apart]) == []
    on_one = [replace(row, factors={**row.factors, "nodes": 1}) for row in sharded(0.5, (2, 4))]
    assert [found.counts for found in trainings.fsdp([one, *on_one])] == [[1, 2, 4]]


@pytest.mark.parametrize("status", ["skipped", "unsupported", "oom", "failed", "timeout", "not_run"])
def test_cells_without_figures_say_why(status: str) -> None:
    records = {name: unmeasured.records(name, status) for name in unmeasured.sources("scaling_model")}
    got = shown(records.pop("all_reduce"), **records)
    assert {finding.verdict for finding in got["findings"].values()} == {"cannot tell"}
    for table in got["tables"].values():
        assert len(table.frame) and set(table.frame["status"]) == {status}
