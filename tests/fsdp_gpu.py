"""Sharded training with NCCL on several GPUs. Run by hand on such a machine: python -m pytest tests/fsdp_gpu.py

Not collected by name. The cases of test_fsdp.py run again, all of them in one launch for each number of ranks; then
what gloo cannot show: FSDP1's off-load, and the experiment's cells with BLOOM's own shape. Two GPUs are enough.
"""

from __future__ import annotations

import time
from typing import Any

import fsdp_cases
import pytest
import test_fsdp
import test_strategies
import torch
import torch.distributed as dist

from perfscribe.distributed.launch import launch
from perfscribe.experiments.strategies import measure, show
from perfscribe.records.records import Record

GPUS = torch.cuda.device_count()  # by NVML: no context
COUNTS = [count for count in (2, 4) if count <= GPUS]
pytestmark = pytest.mark.skipif(GPUS < 2 or not dist.is_nccl_available(), reason="needs NCCL and two GPUs")
OTHERS_BYTES = 64 * 2**20  # the allocator's own rounding of blocks stays below it
OFFLOADED = test_fsdp.FSDP1 | {"offload": True}
# Products in fp32 add up in another order, so that AdamW's steps differ where gradients are nearly 0.
SGD, ADAMW, LOW = 1e-3, 0.02, 0.1


def run(program: Any, arguments: dict[str, Any], world_size: int = 2) -> list[Any]:
    return launch(program, arguments, world_size=world_size, backend="nccl", timeout_s=300).results


@pytest.mark.parametrize("world_size", COUNTS)
def test_every_case_of_gloo(world_size: int) -> None:
    # two micro-batches a rank need two rows each
    whole = [case for case in test_fsdp.cases() if case[1]["run"] != "exchanges" and "accumulation" not in case[1]]
    named = test_fsdp.cases() if world_size == 2 else whole
    named += [("fsdp1 offload sgd", {"run": "difference", "plan": OFFLOADED, "optimizer": "sgd"})]
    named += [("fsdp1 offload counted", {"run": "counted", "plan": OFFLOADED})]
    by_rank = run(fsdp_cases.several, {"cases": [case for _, case in named]}, world_size)
    wrong = []
    for at, (name, case) in enumerate(named):
        said = [of[at] for of in by_rank]
        if case["run"] == "exchanges":
            expected = test_fsdp.EXCHANGED[name.split()[0]][case["everywhere"]]
            if said != [expected] * world_size:
                wrong.append((name, said))
            continue
        if case["run"] == "difference":
            low = case["plan"].get("dtype", "fp32") != "fp32"
            bound = LOW if low else SGD if case.get("optimizer") == "sgd" else ADAMW
            if not max(said) < bound:
                wrong.append((name, said))
            continue
        fullest = max(said, key=lambda one: sum(one["state"].values()))
        try:
            test_fsdp.assert_as_predicted(fullest, 0.02 if "fsdp1" in name else 0)
        except AssertionError as error:
            wrong.append((name, str(error).splitlines()[0]))
    assert wrong == []


@pytest.mark.parametrize("name", ["fsdp2_fp16", "offload_fp16", "ddp_fp16", "fsdp1_fp16"])
def test_an_overflow_on_one_rank(name: str) -> None:
    assert run(fsdp_cases.overflowing, {"plan": test_fsdp.ALL[name]}) == [[False, True, 2.0**9]] * 2


def test_what_was_not_applied_is_refused() -> None:
    plans = [(test_fsdp.ALL[done], test_fsdp.ALL[asked]) for done, asked, _ in test_fsdp.PAIRS]
    assert run(fsdp_cases.mismatched, {"pairs": plans})[0] == [text for *_, text in test_fsdp.PAIRS]


@pytest.fixture(scope="module")
def measured() -> list[Record]:
    """The gpu preset's cells, as far as the GPUs go; prints how long each took."""
    section = test_strategies.section("gpu")
    section |= {"world_size": [ranks for ranks in section["world_size"] if ranks <= GPUS]}
    cells, found, began = measure.cells(section), {}, time.monotonic()
    measure.start_early()
    for cell in sorted(cells, key=lambda one: one.cost):
        at = time.monotonic()
        found[id(cell)] = test_strategies.as_record(cell, None if cell.skip else measure.run(cell))
        shown = {name: cell.factors.get(name) for name in ("part", "world_size", *measure.PLAN, "exchange")}
        print(f"{time.monotonic() - at:6.2f} s", *shown.values(), flush=True)
    measure.close()
    print(f"{time.monotonic() - began:6.1f} s in all", flush=True)
    return [found[id(cell)] for cell in cells]


def test_cells_of_bloom(measured: list[Record]) -> None:
    for name, table in test_strategies.tables(measured).items():
        print(name, table.frame.to_csv(), sep="\n")
        assert len(table.ok) >= 3, name


def test_losses_of_bloom_are_those_of_ddp(measured: list[Record]) -> None:
    for ranks in {one.factors["world_size"] for one in test_strategies.grid(measured)}:
        same = [one for one in test_strategies.grid(measured) if one.has(world_size=ranks, dtype="fp32", offload=False)]
        losses = [one.values["first_loss"] for one in same]
        assert max(losses) == pytest.approx(min(losses), rel=1e-3)


def test_off_load_leaves_no_state_on_the_gpu(measured: list[Record]) -> None:
    for one in test_strategies.grid(measured):
        if one.factors["offload"]:
            assert one.values["state_device"] == "cpu"
            kept = next(
                other
                for other in test_strategies.grid(measured)
                if other.factors == one.factors | _without_offload(other)
            )
            assert one.values["peak_allocated_bytes"] < kept.values["peak_allocated_bytes"]


def test_nothing_lies_beside_the_plans_when_peaks_are_looked_at(measured: list[Record]) -> None:
    cells = [*test_strategies.grid(measured), *show.wrapped(measured)]
    held = {tuple(one.factors.values()): one.values["others_bytes"] for one in cells if one.ok}
    assert len(held) >= 3
    assert {plan: size for plan, size in held.items() if abs(size) > OTHERS_BYTES} == {}


def _without_offload(other: Record) -> dict[str, Any]:
    return {"offload": False, **{name: other.factors[name] for name in ("warmup_steps", "timed_steps")}}
