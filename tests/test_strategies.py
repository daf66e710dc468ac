"""strategies: cells measured for real with gloo, what they say of themselves, and tables and sentences from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import fsdp_cases
import pandas as pd
import pytest
import torch
from unmeasured import raw_config

from perfscribe import config, plan
from perfscribe.cells import Cell, Measurement
from perfscribe.child import as_answer
from perfscribe.counters import fsdp_memory, fsdp_traffic
from perfscribe.experiments.strategies import (
    answers,
    claims,
    columns,
    measure,
    model,
    present,
    rows,
    speed,
    training,
    words,
)
from perfscribe.findings import Finding
from perfscribe.models.workshop_shapes import BLOOM
from perfscribe.parallel.failures import RankError
from perfscribe.parallel.launch import launch
from perfscribe.records import Record
from perfscribe.tables import Table

NAME = "strategies"


def section(preset: str) -> dict[str, Any]:
    """The experiment's part of the committed config."""
    return plan.own_section(config.resolve(raw_config(), preset), NAME)


def as_record(cell: Cell, measurement: Measurement | None) -> Record:
    """The record that the worker would make of one round."""
    if measurement is None:
        return Record(NAME, dict(cell.factors), "skipped", cell.skip or "no GPU", "measured")
    answer = json.loads(json.dumps(as_answer(measurement), allow_nan=False))
    return Record(
        NAME,
        dict(cell.factors),
        "ok",
        "",
        "measured",
        samples={name: [samples] for name, samples in answer["samples"].items()},
        values=answer["values"],
        series=answer["series"],
        timers=answer["timers"],
    )


@pytest.fixture(scope="module")
def measured() -> Iterator[list[Record]]:
    """The tiny preset, turns enough for an interval; in the order of its cells."""
    cells = measure.cells(section("tiny") | {"turns": 6, "timed_steps": 1})
    found = {}
    for cell in sorted(cells, key=lambda one: one.cost):
        found[id(cell)] = as_record(cell, None if cell.skip or "cuda" in cell.requires else measure.run(cell))
    measure.close()
    yield [found[id(cell)] for cell in cells]


def tables(records: list[Record]) -> dict[str, Table]:
    return {table.id: table for table in present.tables({NAME: records})}


def findings(records: list[Record]) -> dict[str, Finding]:
    return {one.id: one for one in present.findings(tables(records))}


# --- cells ------------------------------------------------------------------------------------------------------


def test_cells_of_the_gpu_preset() -> None:
    cells = measure.cells(section("gpu"))
    grid = [cell for cell in cells if cell["part"] == words.GRID]
    of_four = [cell for cell in grid if cell["world_size"] == 4]
    levels = {tuple(cell[name] for name in words.PLAN) for cell in of_four}
    assert len(levels) == len(of_four) == 3 * 3 * 2 * 2 + 3 * 2 + 1
    assert not any(cell.skip for cell in cells)
    for ranks, strategies in ((1, 5), (2, 5)):
        few = [cell for cell in grid if cell["world_size"] == ranks]
        assert len(few) == strategies + 2 + 1 + 1
        assert all(cell.requires[-1] == f"cuda:{ranks}" for cell in few)
    three = measure.cells(section("gpu") | {"world_size": [3], "full_grid": False})
    assert [cell.skip for cell in three if cell.skip] == ["HYBRID_SHARD halves the ranks, and 3 is odd"]
    steps = [4 + cell["warmup_steps"] + cell["timed_steps"] + 1 for cell in grid]
    assert max(steps) <= 30
    assert all(cell["model"] == "bigscience/bloom-560m" and cell["seq_len"] == 512 for cell in grid)


def test_few_ranks_come_first_so_that_each_number_is_started_once() -> None:
    for preset in ("cpu", "gpu"):
        cells = sorted(measure.cells(section(preset)), key=lambda cell: cell.cost)
        ranks = [cell["world_size"] for cell in cells if cell["part"] != words.COUNT]
        assert ranks == sorted(ranks)


def test_levels_name_what_they_are() -> None:
    assert words.api_of("fsdp1_shard_grad_op") == ("fsdp1", "shard_grad_op")
    assert words.api_of("ddp") == ("ddp", "ddp")
    variants = section("gpu")["wrapping"]
    assert [":".join(one.values()) for one in words.from_level(words.as_level(variants))] == variants
    for one in words.from_level(words.as_level(variants)):
        words.plan_of(
            {
                "strategy": "full_shard",
                "dtype": "fp32",
                "reduce_dtype": "fp32",
                "offload": False,
                "checkpointing": False,
            }
            | one
        )


# --- measured ---------------------------------------------------------------------------------------------------


def test_state_and_traffic_are_as_predicted(measured: list[Record]) -> None:
    for record in (one for one in rows.grid(measured) if one.ok):
        load = rows.load(record)
        exact = record.factors["api"] != "fsdp1"
        state = record.values["state_bytes"]
        assert state == pytest.approx(sum(fsdp_memory.state_bytes(load).values()), rel=0 if exact else 0.01)
        sent = fsdp_traffic.sent_bytes(fsdp_traffic.messages(load))
        assert record.values["sent_bytes"] == pytest.approx(sent, rel=0 if exact else 0.01)
        between = fsdp_memory.gathered_between_bytes(load)
        assert record.values["gathered_between_bytes"] == pytest.approx(between, rel=0 if exact else 0.01)


def test_all_strategies_train_alike(measured: list[Record]) -> None:
    """Same weights, same batches: the losses after the steps are those of DDP."""
    for ranks in (1, 2):
        same = [one for one in rows.grid(measured) if one.ok and one.has(world_size=ranks, dtype="fp32", offload=False)]
        assert len(same) >= 5
        for key in ("first_loss", "last_loss"):
            losses = [one.values[key] for one in same]
            assert max(losses) == pytest.approx(min(losses), rel=1e-4)
        assert same[0].values["last_loss"] < same[0].values["first_loss"]


def test_every_cell_says_what_wrapped_its_model(measured: list[Record]) -> None:
    shown = tables(measured)["fsdp.strategy_wrapped"].ok
    two = shown[shown["world_size"] == 2]
    assert dict(zip(two["strategy"] + two["api"], two["mesh"], strict=True)) == {
        "FULL_SHARDFSDP2": "1 × 2",
        "DDPDDP": "2 × 1",
        "SHARD_GRAD_OPFSDP2": "1 × 2",
        "HYBRID_SHARDFSDP2": "2 × 1",
        "FULL_SHARDFSDP1": "1 × 2",
    }
    one = shown[(shown["world_size"] == 1) & (shown["api"] == "FSDP1")].iloc[0]
    assert (one["strategy"], one["applied_strategy"]) == ("FULL_SHARD", "NO_SHARD")


def test_a_last_loss_says_of_which_step_it_is(measured: list[Record]) -> None:
    cell = next(one for one in rows.grid(measured) if one.ok and one.has(api="fsdp2", offload=False))
    fewer = replace(cell, factors={**cell.factors, "offload": True, "warmup_steps": 1, "timed_steps": 3})
    more = replace(cell, factors={**cell.factors, "warmup_steps": 2, "timed_steps": 8})
    table = tables([more, fewer])["fsdp.strategy_wrapped"]
    assert list(table.ok["last_step"]) == [15, 9]
    ended = replace(more, status="failed", values={"blocks": 3})
    assert list(tables([ended])["fsdp.strategy_wrapped"].frame["last_step"]) == [None]
    assert any("losses of unlike steps" in note for note in table.notes)


def test_what_gathers_nothing_computes_in_its_dtype(measured: list[Record]) -> None:
    shown = tables(measured)["fsdp.strategy_wrapped"]
    ddp = next(one for one in rows.grid(measured) if one.ok and one.has(api="ddp", dtype="fp32"))
    mixed = replace(ddp, factors={**ddp.factors, "dtype": "bf16"})
    assert "Gathers or computes in" in [column.title for column in shown.columns]
    assert list(tables([ddp, mixed])["fsdp.strategy_wrapped"].ok["applied_dtype"]) == ["fp32", "autocast"]


def test_what_the_base_is() -> None:
    """The first level of each, from which one differs at a time."""
    cells = [cell for cell in measure.cells(section("cpu")) if cell["part"] == words.GRID and cell["world_size"] == 2]
    base = dict(zip(words.PLAN, ("fsdp2", "full_shard", "fp32", False, False), strict=True))
    differing = [[name for name in words.PLAN if cell[name] != base[name]] for cell in cells]
    assert differing.count([]) == 1
    assert all(names in ([], ["api"], ["api", "strategy"]) or len(names) == 1 for names in differing)


def test_the_counted_model_is_the_one_that_is_measured() -> None:
    pytest.importorskip("transformers", reason="the package transformers is not installed")
    from transformers.models.bloom.modeling_bloom import BloomBlock

    from perfscribe.models import bloom

    shape = BLOOM[measure.COUNTED_MODEL]
    found = model.layout(bloom.with_random_weights(shape, 0, "meta"), BloomBlock)
    values = measure.count(measure.COUNTED_MODEL).values
    block = sum(elements for _, elements in found["block"])
    assert (block, found["blocks"]) == (values["block_parameters"], values["blocks"])
    assert values["parameters"] == 559_214_592 == sum(n for _, n in found["outside"]) + found["blocks"] * block
    assert max(n for _, n in found["outside"]) == values["embedding_parameters"]


# --- shown ------------------------------------------------------------------------------------------------------


def test_tables_and_sentences_of_measured_cells(measured: list[Record]) -> None:
    made = tables(measured)
    assert all(len(table.ok) >= 3 for table in made.values()), {name: len(one.ok) for name, one in made.items()}
    found = findings(measured)
    assert {name: one.verdict for name, one in found.items()} == {
        "fsdp.strategy_speed": "answered",
        "fsdp.strategy_memory": "confirmed",
        "fsdp.strategy_traffic": "confirmed",
        "fsdp.sharding_words": "contradicted",
        "fsdp.wrapping": "contradicted",
        "fsdp.units": "contradicted",
        "fsdp.world_of_one": "contradicted",
        "fsdp.offload": "contradicted",
    }, {name: one.text for name, one in found.items() if one.verdict == "cannot tell"}
    assert "302309376 of 559214592 parameters, 54.1 %" in found["fsdp.units"].text
    assert "FSDP1 has 1 unit" in found["fsdp.wrapping"].text
    assert "is NO_SHARD on 1 × 1" in found["fsdp.world_of_one"].text
    assert all("nan" not in one.text for one in found.values())


def test_wrong_sums_are_said(measured: list[Record]) -> None:
    def spoiled(record: Record) -> Record:
        if record.factors["part"] != words.ACCUMULATION or not record.ok or record.factors["exchange"] != "each":
            return record
        return replace(record, values=record.values | {"gradient_norm": record.values["expected_norm"] / 2})

    assert "are wrong" in findings([spoiled(one) for one in measured])["fsdp.offload"].text
    right = findings(measured)["fsdp.offload"].text
    assert "all are right" in right and "exchanged: FSDP2 with each micro-batch 1.0000" in right


def test_ratios_are_to_the_usual_variant(measured: list[Record]) -> None:
    shown = tables(measured)["fsdp.wrapping"].ok.set_index(["api", "wrapping", "prefetch"])
    usual = shown.loc["FSDP2", "per block", "implicit"]
    assert [usual[name] for name in ("ratio", "interval", "verdict")] == ["itself"] * 3
    for _, row in shown.iloc[1:].iterrows():  # both of the medians of turns
        assert row["ratio"] == pytest.approx(row["step_ms"] / usual["step_ms"])
    assert list(shown["applied_units"]) == [4, 4, 1]
    source = shown.loc["FSDP1", columns.WRAPPINGS["whole"], "backward_post, forward"]
    assert source["sent_mb"] == pytest.approx(source["sent_predicted_mb"], rel=0.01)
    assert source["gathered_between_gib"] > 0


def test_a_step_and_its_ratio_are_of_the_same_medians(measured: list[Record]) -> None:
    """The median of all steps is 3 ms here, below the usual variant's 4 ms, where turns take longer than its own."""
    cell = next(one for one in measured if one.ok and one.factors["part"] == words.WRAPPING)
    usual, *others = cell.samples
    steps = {usual: [[4.0, 4.0, 5.0] * 6]} | {one: [[2.0, 6.0, 6.0] * 3 + [1.0, 3.0, 3.0] * 3] for one in others}
    shown = tables([replace(cell, samples=steps)])["fsdp.wrapping"].ok
    assert list(shown["step_ms"]) == [4.0] + [4.5] * len(others)
    assert list(shown["ratio"]) == ["itself"] + [1.125] * len(others)
    assert set(shown["step_ms_n"]) == {6}


def test_a_prediction_that_is_off_is_said(measured: list[Record]) -> None:
    more = [replace(one, values=one.values | {"state_bytes": 2 * one.values.get("state_bytes", 0)}) for one in measured]
    assert findings(more)["fsdp.strategy_memory"].verdict == "contradicted"


def changed(records: list[Record], values: dict[str, Any], times: float = 1.0, **factors: Any) -> list[Record]:
    """The records, those with these factors with other values and steps that take so many times as long."""

    def of(one: Record) -> Record:
        if not one.ok or any(one.factors.get(name) != level for name, level in factors.items()):
            return one
        longer = {name: [[times * at for at in part] for part in parts] for name, parts in one.samples.items()}
        return replace(one, values=one.values | values, samples=longer)

    return [of(one) for one in records]


def test_a_peak_that_casts_lower_is_no_memory_that_sharding_saves(measured: list[Record]) -> None:
    lower = changed(measured, {"peak_allocated_bytes": 1}, part=words.GRID, world_size=1, api="fsdp2", offload=False)
    found = findings(lower)["fsdp.world_of_one"]
    assert found.verdict == "contradicted" and found.text.startswith("No: ")
    assert "holds the same to the byte" in found.text and "Peaks differ by" in found.text
    assert "CPU off-load moves nothing here" in found.text
    gpu = changed(lower, {"state_device": "cuda"}, part=words.GRID, offload=False)
    assert "Only CPU off-load lowers what lies on the device" in findings(gpu)["fsdp.world_of_one"].text
    less = changed(measured, {"state_bytes": 1}, part=words.GRID, world_size=1, api="fsdp2", offload=False)
    assert findings(less)["fsdp.world_of_one"].verdict == "confirmed"


def test_off_load_is_told_of_the_plainest_plan(measured: list[Record]) -> None:
    plan = {"part": words.GRID, "world_size": 2, "offload": True}
    last = next(one for one in measured if one.has(**plan))
    other = {"strategy": "hybrid_shard", "dtype": "bf16", "checkpointing": True}
    more = [*measured, replace(last, factors={**last.factors, **other})]
    assert "2 ranks (FULL_SHARD in fp32 with off-load)" in findings(more)["fsdp.offload"].text
    rest = [one for one in more if one is not last]
    assert "(HYBRID_SHARD in bf16 with off-load and checkpointing)" in findings(rest)["fsdp.offload"].text


def test_what_a_step_takes_without_communication_is_said(measured: list[Record]) -> None:
    one = {"part": words.GRID, "world_size": 1, "dtype": "fp32", "offload": False, "checkpointing": False}
    two = one | {"world_size": 2}
    known = [
        replace(cell, samples={"step_ms": [[_step(cell.factors)]]})
        for cell in measured
        if cell.ok and (cell.has(**one) or cell.has(**two))
    ]
    made = tables(known + [cell for cell in measured if cell.factors["part"] == words.WRAPPING])
    grid, turns = made["fsdp.strategies"].ok, made["fsdp.wrapping"].ok
    said = speed.speed(grid, turns)
    assert "FULL_SHARD takes 20.0 ms a step longer than DDP with 2 ranks, and 20.0 ms with one (fp32), which" in said
    assert "which sends nothing: so much is the handling of units" in said
    assert "handling" not in speed.speed(grid[grid["world_size"] == 2], turns)
    grid.loc[grid["strategy"] == "FULL_SHARD", "step_ms_iqr"] = 6.0
    assert "takes 20 ms a step longer than DDP" in speed.speed(grid, turns), "no finer than steps spread"
    grid["step_ms_iqr"] = turns["step_ms_iqr"] = 0.01
    turns["step_ms"], turns["units_verdict"] = [40.0, 40.0, 10.0], "slower"
    text = claims.wrapping(turns, grid)[0]
    assert "By FSDP1, with 11 a step against 2, a step takes 10.0 ms longer for each further unit; one rank" in text
    assert "takes 5.00 ms a unit longer than the model alone (fp32), which is the handling" in text
    assert "By FSDP2" not in text, "no FSDP2 as one unit"
    turns["step_ms"] = [40.0, 10.0, 40.0]
    assert "further unit" not in claims.wrapping(turns, grid)[0]


def test_units_of_each_api_are_compared_with_its_own_handling(measured: list[Record]) -> None:
    """What FSDP2's units take says nothing of FSDP1's: the part would be larger than the whole."""
    made = tables(measured)
    grid, turns = made["fsdp.strategies"].ok, made["fsdp.wrapping"].ok
    grid["step_ms_iqr"] = turns["step_ms_iqr"] = 0.01
    one = (grid["world_size"] == 1) & (grid["strategy"].isin(["FULL_SHARD", "the model alone"]))
    grid.loc[one, "step_ms"] = grid.loc[one, "api"].map({"none": 10.0, "FSDP1": 18.0, "FSDP2": 50.0})
    turns["step_ms"], turns["units_verdict"] = [40.0, 19.0, 10.0], "slower"
    whole = turns[turns["api"] == "FSDP1"].iloc[1].copy()
    whole[["api", "prefetch", "step_ms"]] = ["FSDP2", "implicit", 4.0]
    text = claims.wrapping(pd.concat([turns, whole.to_frame().T]), grid)[0]
    assert "a step takes 3.00 ms longer for each further unit; one rank, which sends nothing, takes 2.00 ms" in text
    assert "By FSDP2, with 12 a step against 2, a step takes 12.0 ms longer" in text
    assert "takes 10.0 ms a unit longer than the model alone (fp32), which is the handling of units" in text
    grid.loc[one & (grid["api"] == "FSDP1"), "step_ms"] = 50.0
    text = claims.wrapping(turns, grid)[0]
    assert "takes 10.0 ms a unit longer than the model alone (fp32), so that all that this shows is the" in text
    grid["step_ms_iqr"] = 20.0
    text = claims.wrapping(turns, grid)[0]
    near = "takes 10 ms a unit longer than the model alone (fp32), which the spread of steps does not tell from it: all"
    assert f"{near} that this shows is the handling of units" in text
    turns["units_verdict"] = "cannot tell"
    text = claims.wrapping(turns, grid)[0]
    assert "a step takes 3.00 ms longer for each further unit, but the turns do not tell that from none." in text
    assert "handling" not in text


def test_further_units_are_judged_by_the_turns_of_their_own_api(measured: list[Record]) -> None:
    cell = next(one for one in measured if one.ok and one.factors["part"] == words.WRAPPING)
    steps = len(next(iter(cell.samples.values()))[0])

    def verdicts(whole_ms: float, turns: int) -> dict[str, str]:
        samples = {
            name: [[whole_ms if "whole" in name else 4.0 + n % 2 for n in range(steps)]] for name in cell.samples
        }
        few = replace(cell, samples=samples, factors={**cell.factors, "turns": turns})
        shown = tables([few])["fsdp.wrapping"].ok
        return dict(zip(shown["api"] + " " + shown["wrapping"], shown["units_verdict"], strict=True))

    assert verdicts(1.0, 2)["FSDP1 none: one unit"] == "cannot tell"
    found = verdicts(1.0, 6)
    assert found["FSDP1 none: one unit"] == "slower" and found["FSDP2 per block"] == rows.NO_UNITS
    assert verdicts(40.0, 6)["FSDP1 none: one unit"] == "faster"


def grid_of(records: list[Record], two: list[float], alone: float) -> pd.DataFrame:
    """The strategies' table with these steps of two ranks in ms, each with an interquartile range of 2 ms."""
    grid = tables(records)["fsdp.strategies"].ok.copy()
    steps = iter(two)
    grid["step_ms"] = [next(steps) if ranks == 2 else alone for ranks in grid["world_size"]]
    grid["step_ms_iqr"] = 2.0
    grid["samples_per_s"] = 1e3 * grid["world_size"] / grid["step_ms"]
    grid["samples_per_s_spread"] = grid["samples_per_s"] * grid["step_ms_iqr"] / grid["step_ms"]
    return grid


NO_VARIANTS = pd.DataFrame()


def test_steps_within_their_spread_are_in_no_order(measured: list[Record]) -> None:
    number = sum(one.ok and one.factors["world_size"] == 2 for one in rows.grid(measured))
    near = speed.speed(grid_of(measured, [40.0, 20.0, 21.0] + [30.0] * (number - 3), 10.0), NO_VARIANTS)
    grid = grid_of(measured, [20.0 + 10 * place for place in range(number)], 5.0)
    names = [answers.named(row) for _, row in grid[grid["world_size"] == 2].iterrows()]
    assert f"{names[1]} is fastest with 100 samples/s (the spread of steps does not tell it from {names[2]}), " in near
    assert "Within the spread of the one before it: " in near
    far = speed.speed(grid, NO_VARIANTS)
    assert "pread" not in far and "fastest with 100 samples/s, " in far
    grid.loc[grid["world_size"] == 2, "flags"] = "host busy (others use 27 % of the cores); throttled"
    busy = f"{names[0]} is fastest with 100 (host busy, throttled) samples/s, "
    assert busy in speed.speed(grid, NO_VARIANTS)
    assert "HYBRID_SHARD (nothing divided) " in far


def test_one_rank_alone_stands_beside_several(measured: list[Record]) -> None:
    number = sum(one.ok and one.factors["world_size"] == 2 for one in rows.grid(measured))
    said = speed.speed(grid_of(measured, [50.0, *[10.0] * (number - 1)], 10.0), NO_VARIANTS)
    assert "The model alone on one rank (fp32) trains 100 samples/s, more than 1 of the " in said
    assert "with 1 row of 16 tokens a rank" in said
    assert "The model alone" not in speed.speed(grid_of(measured, [10.0] * number, 10.0), NO_VARIANTS)
    near = speed.speed(grid_of(measured, [19.0, 21.0, *[10.0] * (number - 2)], 10.0), NO_VARIANTS)
    assert "more than" not in near, "steps of 19 and 21 ms on two ranks are as many samples as 10 ms on one"
    assert "trains 100 samples/s; the spread of steps does not tell 2 of the " in near
    notes = tables(measured)["fsdp.strategies"].notes
    assert notes[0].startswith("A rank's batch in a step: 1 row of 16 tokens (gpt-tiny).")


def test_the_fastest_strategy_stands_beside_one_unit_of_fsdp(measured: list[Record]) -> None:
    made = tables(measured)
    grid, turns = made["fsdp.strategies"].ok, made["fsdp.wrapping"].ok
    turns["samples_per_s"], turns["samples_per_s_spread"] = [10.0, 20.0, 30.0], [1.0, 1.0, 4.0]
    said = speed.speed(grid, turns)
    assert "as one unit FULL_SHARD trains, in samples/s, 30 by FSDP1 (fp32; of a launch of its own" in said
    assert "as one unit" not in speed.speed(grid, turns[turns["wrapping"] == "per block"])


def test_nothing_is_no_size_in_mib() -> None:
    assert [answers.size(gib) for gib in (0.0, 1.5, 1 / 1024)] == ["0 GiB", "1.50 GiB", "1.00 MiB"]


def test_switches_cost_time_and_save_memory() -> None:
    plans = [
        {"strategy": name, "api": "FSDP2", "dtype": "fp32", "offload": off, "checkpointing": "no"}
        for name in ("FULL_SHARD", "SHARD_GRAD_OP")
        for off in ("no", "yes")
    ]
    figures = {"step_ms": [10.0, 20.0, 10.0, 40.0], "peak_allocated_gib": [8.0, 2.0, 8.0, 4.0], "step_ms_iqr": 1.0}
    cells = pd.DataFrame(plans).assign(**figures)
    assert speed._costs(cells) == (
        "Against the same plan without: with CPU off-load a step takes 3.00 times (2.00 to 4.00) as long and 0.375 "
        "times (0.250 to 0.500) the memory at its peak (medians over 2 pairs)."
    )
    cells["step_ms_iqr"] = [1.0, 15.0, 1.0, 1.0]
    near = "(2.00 to 4.00) as long (within the spread of steps in 1 of 2 pairs: which is faster cannot be told) and"
    assert near in speed._costs(cells)
    near = "takes 2.00 times as long (within the spread of steps: which is faster cannot be told) and 0.250 times"
    assert near in speed._costs(cells[:2])


def test_a_hybrid_of_two_ranks_divides_nothing(measured: list[Record]) -> None:
    said = findings(measured)["fsdp.sharding_words"].text
    assert said.endswith("are whole ones: it divides nothing and holds what DDP does.")
    memory = tables(measured)["fsdp.strategy_memory"].ok
    assert claims.sharding_words(memory.assign(world_size=4))[0].endswith("each divided among half of the ranks.")


def _step(factors: Any) -> float:
    """A step in ms: of the model alone and of DDP, or of what is sharded, which takes longer with more ranks."""
    alone = factors["api"] in ("single", "ddp")
    return 10.0 * factors["world_size"] * (1 if alone else 3 - (factors["world_size"] - 1))


def test_peaks_beside_memory_of_others_are_in_doubt(measured: list[Record]) -> None:
    shown = tables(measured)["fsdp.strategies"].ok
    assert set(shown["others_mib"]) == {"not counted"}
    assert "in doubt" not in findings(measured)["fsdp.strategy_memory"].text
    beside = changed(measured, {"others_bytes": 2**31}, part=words.GRID, api="ddp")
    number = sum(one.ok and one.has(part=words.GRID, api="ddp") for one in measured)
    said = findings(beside)["fsdp.strategy_memory"].text
    assert f"In {number} cells up to 2.00 GiB of what lay on the GPU before the step are not accounted for" in said
    assert "in doubt" not in findings(changed(measured, {"others_bytes": 2**20}))["fsdp.strategy_memory"].text
    assert "in doubt" not in findings(changed(measured, {"others_bytes": 2**20}))["fsdp.wrapping"].text


# --- memory -----------------------------------------------------------------------------------------------------

ONE_RANK: Any = SimpleNamespace(place=SimpleNamespace(rank=0, world_size=1), device=torch.device("cpu"))
SINGLE: dict[str, Any] = {"api": "single", "strategy": "single", "world_size": 1}
RISE = 1000  # bytes that a step takes on top of what is there before it


class Allocator:
    """In the place of PeakMemory: a GPU on which the plans lie, and others."""

    def __init__(self, plans: list[training.Trained], others: int) -> None:
        self.allocated_before_bytes = sum(one.at_rest_bytes() for one in plans) + others
        self.peak_allocated_bytes = self.peak_reserved_bytes = self.allocated_before_bytes + RISE

    def __enter__(self) -> Allocator:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_a_peak_is_the_plans_own_whatever_lies_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (training.Trained(a_cell().factors | SINGLE, ONE_RANK) for _ in range(2))
    own = one.at_rest_bytes()
    weights = sum(parameter.nbytes for parameter in one.training.module.parameters())
    assert own == pytest.approx(3 * weights, rel=1e-2)
    for others in (0, 2**31):  # what a plan before this one has left
        monkeypatch.setattr(training, "PeakMemory", lambda device, others=others: Allocator([one, two], others))
        found = one.memory([two])
        assert (found["peak_allocated_bytes"], found["others_bytes"]) == (own + RISE, others)
        assert one.memory()["others_bytes"] == others + own  # the other plan, where it is not known of
    one.close()
    assert one.training.optimizer.state == {}
    assert two.at_rest_bytes() == own  # that it is alone in what it gave back


LEFT = [
    ("ddp", "ddp", "fp32", "per_block", "implicit"),
    ("ddp", "ddp", "bf16", "per_block", "implicit"),
    ("fsdp2", "full_shard", "bf16", "per_block", "both"),
    ("fsdp2", "shard_grad_op", "bf16", "whole", "implicit"),
    ("fsdp1", "full_shard", "fp32", "per_block", "backward_pre"),
    ("fsdp1", "full_shard", "bf16", "per_block", "backward_post_forward"),
    ("fsdp1", "full_shard", "bf16", "whole", "backward_post_forward"),
]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_plan_knows_what_it_holds_and_leaves_nothing(world_size: int) -> None:
    names = ("api", "strategy", "dtype", "wrapping", "prefetch")
    plans = [{**a_cell().factors, **dict(zip(names, of, strict=True))} for of in LEFT]
    by_rank = launch(
        fsdp_cases.left_behind, {"plans": plans}, world_size=world_size, backend="gloo", timeout_s=120
    ).results
    for rank in by_rank:
        for of, found in zip(LEFT, rank, strict=True):
            assert found["known"] == pytest.approx(found["added"], rel=0.01), of
            assert found["left"] == 0 and found["known"] >= found["state"], of


# --- faults -----------------------------------------------------------------------------------------------------


def a_cell(**factors: Any) -> Cell:
    grid = [cell for cell in measure.cells(section("tiny")) if cell["part"] == words.GRID and not cell.skip]
    chosen = next(cell for cell in grid if cell["world_size"] == 2 and cell["strategy"] == "full_shard")
    return replace(chosen, factors={**chosen.factors, **factors})


def test_a_rank_that_raises_fails_the_cell_with_its_first_line_and_the_next_cell_is_measured() -> None:
    try:
        with pytest.raises(RankError, match=r"rank \d of 2: ValueError: model_name: 'none': expected one of"):
            measure.run(a_cell(model="none"))
        assert measure.run(a_cell()).values["applied_shards"] == 2
    finally:
        measure.close()


def test_a_model_that_computes_something_else_once_wrapped_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter((3.0, 4.0))
    monkeypatch.setattr(training.models, "loss_of", lambda module, ids: torch.tensor(next(losses), requires_grad=True))
    with pytest.raises(ArithmeticError, match="the first loss is 4, that of the model before it was wrapped 3"):
        training.Trained(a_cell().factors | SINGLE, ONE_RANK)
