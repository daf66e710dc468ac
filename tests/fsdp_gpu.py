"""Sharded training with NCCL on several GPUs. Run by hand on such a machine: python -m pytest tests/fsdp_gpu.py

Not collected by name. The cases of test_fsdp.py run again, in one launch, and FSDP1's off-load, which gloo cannot show.
"""

from __future__ import annotations

from typing import Any

import fsdp_cases
import pytest
import test_fsdp
import torch
import torch.distributed as dist

from perfscribe.distributed.launch import launch

GPUS = torch.cuda.device_count()  # by NVML: no context
pytestmark = pytest.mark.skipif(GPUS < 2 or not dist.is_nccl_available(), reason="needs NCCL and two GPUs")
OFFLOADED = test_fsdp.FSDP1 | {"offload": True}
# Products in fp32 add up in another order.
EXACT, LOW = 1e-3, 0.1


def run(program: Any, arguments: dict[str, Any]) -> list[Any]:
    return launch(program, arguments, world_size=2, backend="nccl", timeout_s=300)


def test_every_case_of_gloo() -> None:
    cases = test_fsdp.cases()
    cases["fsdp1 offload whole"] = {"run": "difference", "plan": OFFLOADED}
    cases["fsdp1 offload counted"] = {"run": "counted", "plan": OFFLOADED}
    by_rank = run(fsdp_cases.several, {"cases": list(cases.values())})
    for (name, case), *said in zip(cases.items(), *by_rank, strict=True):
        if case["run"] == "exchanges":
            assert said == [test_fsdp.EXCHANGED[name.split()[0]][case["everywhere"]]] * 2, name
        elif case["run"] == "difference":
            assert max(said) < (LOW if "dtype" in case["plan"] else EXACT), name
        else:
            test_fsdp.assert_as_predicted(name, max(said, key=lambda one: sum(one["state"].values())))


@pytest.mark.parametrize("name", ["fsdp2_fp16", "offload_fp16", "ddp_fp16", "fsdp1_fp16"])
def test_an_overflow_on_one_rank(name: str) -> None:
    assert run(fsdp_cases.overflowing, {"plan": test_fsdp.PLANS[name]}) == [[False, True, 2.0**9]] * 2
