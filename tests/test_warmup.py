"""Tables and answer of training steps after few warm-up steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perfscribe.experiments.warmup import present
from perfscribe.findings import Finding
from perfscribe.records import Record

COLD, SECOND, THIRD = (100.0, 30.0, 70.0), (15.0, 20.0, 5.0), (12.0, 20.0, 4.0)
WARM = (10.0, 20.0, 4.0)


def cell(warmup_steps: int, first: Sequence[float], size: str = "nano", wide_ms: float = 0.0) -> Record:
    """Steps of 34 ms, every other one longer by wide_ms; first: forward, backward and optimizer of the first timed."""
    factors = {"size": size, "seq_len": 16, "dtype": "fp32", "device": "cpu", "warmup_steps": warmup_steps}
    phases = {
        f"{name}_ms": [own, *(warm + (wide_ms if name == "forward" and place % 2 else 0.0) for place in range(9))]
        for name, own, warm in zip(present.PHASES, first, WARM, strict=True)
    }
    samples = {**phases, "full_step_ms": [sum(step) for step in zip(*phases.values(), strict=True)]}
    return Record("warmup", factors | {"batch": 4}, "ok", "", "measured", {name: [s] for name, s in samples.items()})


def said(*cells: Record) -> Finding:
    made = {table.id: table for table in present.tables({"warmup": list(cells)})}
    (found,) = present.findings(made)
    return found


def test_first_steps_are_held_against_the_same_warm_ones() -> None:
    """The row of one warm-up step is slow throughout: its own median says nothing of a warm step."""
    slow = cell(1, SECOND)
    slow.samples["full_step_ms"] = [[40.0] + [80.0] * 9]
    text = said(cell(0, COLD), slow, cell(2, THIRD), cell(5, WARM)).text
    assert text.startswith(
        "Without warm-up the first step takes 5.88 times as long as steps that 5 others came before."
    )
    assert "After a warm-up of one step it takes 1.18 times, of two it takes 1.06 times as long." in text


def test_the_part_of_the_first_step_that_is_longer_is_named() -> None:
    text = said(cell(0, COLD), cell(5, WARM)).text
    assert "Of what the first one takes longer: forward 54 %, backward 6 %, optimizer 40 %. Forward has most" in text
    assert "After a warm-up" not in text
    both = said(cell(0, COLD), cell(5, WARM), cell(0, (10.0, 100.0, 4.0), "micro"), cell(5, WARM, "micro")).text
    assert (
        "longer in 2 of 2 sizes: forward none to 54 %, backward 6 to 100 %, optimizer none to 40 %. nano: first" in both
    ), "no phase has most of it in both"
    quicker = said(cell(0, (100.0, 18.0, 34.0)), cell(5, WARM)).text
    assert "longer: forward 75 %, backward none, optimizer 25 %. Forward has most of it: a process" in quicker
    mixed = said(cell(0, (50.0, 55.0, 29.0)), cell(5, WARM)).text
    assert "longer: forward 40 %, backward 35 %, optimizer 25 %. nano: first step" in mixed
    told_of = said(cell(0, COLD), cell(5, WARM), cell(0, WARM, "micro"), cell(5, WARM, "micro")).text
    assert "longer in 1 of 2 sizes: forward 54 %, backward 6 %, optimizer 40 %. Forward has most" in told_of


def test_phases_that_are_no_longer_explain_nothing() -> None:
    first = cell(0, (12.0, 18.0, 4.0))
    first.samples["full_step_ms"][0][0] = 90.0  # the whole is timed beside its parts
    assert "first step takes 2.65 times" in said(first, cell(5, WARM)).text
    assert "Of what" not in said(first, cell(5, WARM)).text


def test_a_first_step_within_the_spread_of_warm_ones_is_called_so() -> None:
    noisy = [cell(0, COLD), cell(1, SECOND), cell(5, WARM, wide_ms=12.0)]
    assert "of one step it takes 1.18 times (within the spread of these) as long" in said(*noisy).text
    others = [cell(steps, first, "micro") for steps, first in ((0, COLD), (1, SECOND), (5, WARM))]
    assert (
        "of one step it takes 1.18 times (within the spread of these in 1 of 2 sizes) as long"
        in said(*noisy, *others).text
    )
    alike = said(cell(0, WARM), cell(5, WARM)).text
    assert "takes 1.00 times (within the spread of these) as long" in alike and "Of what" not in alike


def test_without_a_warm_cell_nothing_is_told() -> None:
    assert said(cell(0, COLD)).verdict == said(cell(5, WARM)).verdict == "cannot tell"


@pytest.mark.parametrize("phase", present.PHASES)
def test_the_table_has_the_first_steps_parts(phase: str) -> None:
    (table, _) = present.tables({"warmup": [cell(0, COLD)]})
    assert table.ok.iloc[0][f"first_{phase}_ms"] == dict(zip(present.PHASES, COLD, strict=True))[phase]
