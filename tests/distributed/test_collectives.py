"""Collectives: right on real gloo ranks, wrong results found, times put together; and what NCCL's log says."""

import re
import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from perfscribe.analytic.traffic import BUS_FACTORS
from perfscribe.distributed import collectives
from perfscribe.distributed.collectives import HOST_CLOCK, Message, combine
from perfscribe.distributed.exchange import EXACT_UP_TO, Exchange
from perfscribe.distributed.launch import launch
from perfscribe.distributed.nccl_log import parse_nccl_log
from perfscribe.instruments.correctness import WrongResult

SIZES = ((4096, "fp32"), (3_000_001, "fp32"), (1000, "bf16"), (1000, "fp16"))
WORLD_SIZE = 3


def test_every_collective_is_right_and_timed():
    messages = [Message(operation, size, dtype, 1, 3) for operation in BUS_FACTORS for size, dtype in SIZES]
    arguments = {"messages": [asdict(message) for message in messages]}
    by_rank = launch(collectives.run_on_rank, arguments, world_size=WORLD_SIZE, timeout_s=120)
    for message, *results in zip(messages, *by_rank, strict=True):
        found = combine(message, results)
        item = 4 if message.dtype == "fp32" else 2
        sent = message.size_bytes // (item * WORLD_SIZE) * item * WORLD_SIZE
        received = WORLD_SIZE if message.operation != "reduce_scatter" else 1
        checked = sent // item * received
        assert (found.values["message_bytes"], found.values["elements_checked"]) == (sent, checked)
        assert len(found.samples["time_ms"]) == 3 and len(found.warmup["time_ms"]) == 1
        assert found.timers == {"time_ms": HOST_CLOCK} and found.values["busbw_gb_per_s"] > 0


def wrongly(arguments, rank):
    """Messages of the check for each collective if rank 1 spoils its result after the exchange."""
    spoils = {
        "one element": lambda target: target[target.numel() * 2 // 3].add_(1),
        "swapped chunks": lambda target: target.copy_(target.roll(target.numel() // 2)),
    }
    said = []
    for operation in BUS_FACTORS:
        for spoil in spoils.values():
            exchange = Exchange(Message(operation, arguments["size_bytes"], arguments["dtype"]), rank)
            right, spoil = exchange.call, spoil if rank.place.rank else (lambda target: None)
            exchange.call = lambda call=right, target=exchange.target, spoil=spoil: (call(), spoil(target))
            try:
                said.append(exchange.check() and "right")
            except WrongResult as error:
                said.append(str(error))
    return said


@pytest.mark.parametrize(("size_bytes", "dtype"), [(5_000_000, "fp32"), (6000, "bf16")])
def test_a_check_sees_one_wrong_element_and_swapped_chunks(size_bytes, dtype):
    arguments = {"size_bytes": size_bytes, "dtype": dtype}
    right, wrong = launch("test_collectives:wrongly", arguments, world_size=2, timeout_s=60)
    assert set(right) == {"right"}
    for operation, one, swapped in zip(BUS_FACTORS, wrong[::2], wrong[1::2], strict=True):
        assert re.fullmatch(rf"{operation}: 1 of \d+ elements are wrong on rank 1", one)
        assert re.fullmatch(rf"{operation}: \d+ of \d+ elements are wrong on rank 1", swapped)


def comes_late(arguments, rank):
    """Seconds until a call may begin, of which rank 1 sleeps through the first."""
    exchange = Exchange(Message("broadcast", 1000), rank)
    torch.distributed.barrier()
    time.sleep(rank.place.rank)
    began = time.perf_counter()
    exchange.prepare_on_host()
    return time.perf_counter() - began


def test_a_call_begins_when_all_ranks_are_there():
    first, second = launch("test_collectives:comes_late", {}, world_size=2, timeout_s=60)
    assert first > 0.7 > second


def test_sums_are_exact_in_each_dtype_for_any_number_of_ranks():
    for dtype in EXACT_UP_TO:
        for world_size in (2, 16, 64, 256):
            place = SimpleNamespace(rank=0, world_size=world_size)
            rank = SimpleNamespace(place=place, device=torch.device("cpu"), backend="gloo", seed=0)
            one = Exchange(Message("all_reduce", 8192, dtype), rank)
            total = sum(block.double() for block in one._blocks)
            assert (sum(one._blocks[1:], start=one._blocks[0]).double() == total).all()
            assert one._blocks[0].any() and not one._blocks[0].equal(one._blocks[1])


# In the forms that NCCL 2.28 prints; sizes, channels and addresses are examples.
NCCL_LOG = """\
[W] something else
host:10:10 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
host:10:10 [0] NCCL INFO Channel 00/24 : 0 1
host:10:10 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
host:10:10 [0] NCCL INFO Channel 23/0 : 0[0] -> 1[1] via P2P/CUMEM/read
host:10:10 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels
host:10:10 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..23}
host:10:10 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
host:10:10 [0] NCCL INFO AllReduce: 1073741824 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..11}
host:10:10 [0] NCCL INFO AllReduce: 1073741824 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={12..23}
host:10:10 [0] NCCL INFO AllGather: 524288 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}
host:10:10 [0] NCCL INFO ReduceScatter [Symmetric]: 64 Bytes -> Kernel ReduceScatter_LL nchannels 4 nthreads 512
"""


def test_what_nccl_says_of_itself():
    log = parse_nccl_log(NCCL_LOG.splitlines())
    assert (log.version, log.connections) == ("2.28.9", ("P2P",))
    small, large = log.choice("all_reduce", 2**20, 2), log.choice("all_reduce", 2**30, 2)
    assert (small.algorithm, small.protocol, small.channels) == ("RING", "LL", 24)
    assert (large.algorithm, large.protocol, large.channels) == ("RING", "SIMPLE", 24)
    gathered = log.choice("all_gather", 2**20, 2)
    assert (gathered.protocol, gathered.channels, gathered.message_bytes) == ("LL128", 16, 2**20)
    assert log.choice("reduce_scatter", 128, 2).algorithm == "symmetric ReduceScatter_LL"
    assert log.choice("all_reduce", 77, 2) is None
