"""Tests that need several GPUs and NCCL. Run by hand on such a machine: python -m pytest tests/distributed_gpu.py

Not collected by name. Gradients that come late; the cases of test_fsdp.py, and FSDP1's off-load, which gloo has not;
faults in the middle of NCCL's collectives. Cells of ddp and of optimizer_state_sharding check by themselves that they
train as one process does, those of all_reduce their results and their transport. This process itself never touches
CUDA. Two GPUs are enough.
"""

import contextlib
import os
import re
import signal
import time

import fsdp_cases
import pytest
import test_fsdp
import torch
import torch.distributed as dist
from test_launch import nothing_left  # noqa: F401 (a fixture for each test)

from perfscribe.distributed import watching
from perfscribe.distributed.failures import RankError, RankOutOfMemory, RankTimeout
from perfscribe.distributed.launch import launch
from perfscribe.run.child import failure

GPUS = torch.cuda.device_count()  # by NVML: no context
MOST = min(GPUS, 4)
pytestmark = pytest.mark.skipif(GPUS < 2 or not dist.is_nccl_available(), reason="needs NCCL and two GPUs")

HOOKED = ("overlapped", "bucketed_tiny", "bucketed_two", "bucketed_one")


def run(program, arguments: dict | None = None, world_size: int = 2, timeout_s: float = 60, **options) -> list:
    options = {"backend": "nccl", "world_size": world_size, "timeout_s": timeout_s} | options
    return launch(program, arguments or {}, **options)


class Late(torch.autograd.Function):
    """Keeps the device busy before the gradient that it hands on, so that who does not wait for it reads too early."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        torch.cuda._sleep(20_000_000)  # 10 ms at 2 GHz
        return gradient.clone()


def late_gradients(arguments, rank):
    """Large gradients that come late, in the usual stream and in another."""
    import test_ddp

    width, share = 4096, 1 / rank.place.world_size
    streams = [torch.cuda.default_stream(), torch.cuda.Stream()]
    for name in HOOKED:
        torch.manual_seed(0)
        layers = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(3)).to(rank.device)
        ddp = test_ddp.WRAPPERS[name](layers)
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for step in range(2):
                    ddp.zero_grad()
                    x = torch.full((8, width), 1.0 + step, device=rank.device)
                    # each layer's gradient is the mean over ranks of (1 + rank) * x summed over rows
                    factor = torch.tensor(1.0 + rank.place.rank, device=rank.device)
                    sum(Late.apply(layer(Late.apply(x.requires_grad_()))).sum() * factor for layer in layers).backward()
                    ddp.finish_gradient_synchronization()
                    expected = 8 * (1.0 + step) * sum(1.0 + r for r in range(rank.place.world_size)) * share
                    for p in layers.parameters():
                        assert bool((p.grad == expected).all()), (name, step, p.grad.unique(), expected)
                        p.data.add_(p.grad, alpha=-1e-3)
            torch.cuda.current_stream().wait_stream(stream)
        ddp.release()


def test_collectives_wait_for_the_computation_and_it_for_them():
    run(late_gradients, world_size=MOST, timeout_s=120)


OFFLOADED = test_fsdp.FSDP1 | {"offload": True}
# Products in fp32 add up in another order.
EXACT, LOW = 1e-3, 0.1


def test_every_case_of_gloo() -> None:
    cases = test_fsdp.cases()
    cases["fsdp1 offload whole"] = {"run": "difference", "plan": OFFLOADED}
    cases["fsdp1 offload counted"] = {"run": "counted", "plan": OFFLOADED}
    by_rank = run(fsdp_cases.several, {"cases": list(cases.values())}, timeout_s=300)
    for (name, case), *said in zip(cases.items(), *by_rank, strict=True):
        if case["run"] == "exchanges":
            assert said == [test_fsdp.EXCHANGED[name.split()[0]][case["everywhere"]]] * 2, name
        elif case["run"] == "overflowing":
            assert said == [[False, True, 2.0**9]] * 2, name
        elif case["run"] == "difference":
            assert max(said) < (LOW if "dtype" in case["plan"] else EXACT), name
        else:
            test_fsdp.assert_as_predicted(name, max(said, key=lambda one: sum(one["state"].values())))


def reduce(rank) -> float:
    x = torch.full((2**22,), float(rank.place.rank), device=rank.device)
    dist.all_reduce(x)
    return x[0].item()


def faulty(arguments, rank):
    """Rank 1 fails while the others' kernels already wait for it."""
    reduce(rank)
    if rank.place.rank == 1:
        time.sleep(0.5)
        FAULTS[arguments["fault"]](rank)
    for _ in range(3):
        reduce(rank)


def _die_with_collectives_under_way(rank):
    x = torch.ones(2**22, device=rank.device)
    for _ in range(2):
        dist.all_reduce(x, async_op=True)
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS = {
    "killed_in_a_collective": _die_with_collectives_under_way,
    "out_of_memory": lambda rank: torch.empty(2**50, dtype=torch.uint8, device=rank.device),
    "hangs": lambda _: time.sleep(123456),
    "stops": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
}
ENDS = {
    "killed_in_a_collective": (RankError, r"rank 1 of \d: died by SIGKILL", "failed"),
    "out_of_memory": (RankOutOfMemory, r"rank 1 of \d: OutOfMemoryError: CUDA out of memory\. Tried to .*", "oom"),
}


@pytest.mark.parametrize("fault", ENDS)
def test_the_guilty_rank_is_named(fault):
    kind, text, status = ENDS[fault]
    with pytest.raises(kind) as caught:
        run(faulty, {"fault": fault}, MOST)
    assert type(caught.value) is kind
    assert re.fullmatch(text, str(caught.value)), str(caught.value)
    answer = failure(caught.value)
    assert answer["status"] == status and answer["reason"].removeprefix("RankError: ") == str(caught.value)


@pytest.mark.parametrize(
    ("fault", "place"),
    [("hangs", r"at distributed_gpu\.py:\d+ in <lambda>"), ("stops", "in code that does not let Python answer")],
)
def test_a_rank_that_hangs_is_told_from_those_whose_kernels_wait_for_it(fault, place, monkeypatch):
    monkeypatch.setattr(watching, "ANSWER_S", 1.0)
    with pytest.raises(RankTimeout) as caught:
        run(faulty, {"fault": fault}, MOST, timeout_s=9)
    assert re.fullmatch(rf"rank 1 of \d hangs: no result after 9 s; {place}", str(caught.value)), caught.value
    assert failure(caught.value)["status"] == "timeout"


def second_group(arguments, rank):
    """Both ranks make a second group; rank 1 has no memory left for NCCL's buffers."""
    reduce(rank)
    held = []
    for chunk in (2**30, 2**24, 2**21) if rank.place.rank == 1 else ():
        with contextlib.suppress(torch.OutOfMemoryError):
            while True:
                held.append(torch.empty(chunk, dtype=torch.uint8, device=rank.device))
    group = dist.new_group(range(rank.place.world_size))
    x = torch.ones(2**20, device=rank.device) if rank.place.rank == 0 else held[-1].view(torch.float32)
    dist.all_reduce(x[: 2**19], group=group)
    return x[0].item()


def test_nccl_without_memory_for_its_buffers_is_out_of_memory():
    with pytest.raises(RankOutOfMemory) as caught:
        run(second_group, timeout_s=30)
    assert str(caught.value).startswith("rank 1 of 2: ")
