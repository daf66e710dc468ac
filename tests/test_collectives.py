"""Collectives: right on real gloo ranks, wrong results found, times put together; and what NCCL's log and NVML say."""

from __future__ import annotations

import time
from dataclasses import asdict
from types import SimpleNamespace

import fake_nvml
import pytest

from perfscribe.base.cells import Unsupported
from perfscribe.distributed import collectives, transport
from perfscribe.distributed.collectives import CUDA_EVENTS, HOST_CLOCK, OPERATIONS, Message, combine, time_collectives
from perfscribe.distributed.exchange import EXACT_UP_TO, Exchange
from perfscribe.distributed.failures import RankError
from perfscribe.distributed.launch import launch
from perfscribe.distributed.nccl_log import parse_nccl_log

LATE_S = 0.2
SIZES = ((4096, "fp32"), (3_000_001, "fp32"), (5_000_000, "fp32"), (1000, "bf16"), (1000, "fp16"))


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_collective_is_right_and_timed(world_size):
    messages = [Message(operation, size, dtype, 1, 3) for operation in OPERATIONS for size, dtype in SIZES]
    found = time_collectives(messages, world_size=world_size, timeout_s=120)
    for message, one in zip(messages, found, strict=True):
        item = 4 if message.dtype == "fp32" else 2
        sent = message.size_bytes // (item * world_size) * item * world_size
        assert one.values["message_bytes"] == sent
        received = world_size if message.operation != "reduce_scatter" else 1
        assert one.values["elements_checked"] == sent // item * received
        assert len(one.samples["time_ms"]) == 3 and len(one.warmup["time_ms"]) == 1
        assert one.timers == {"time_ms": HOST_CLOCK}
        by_rank = [one.series[f"rank_{rank}_ms"] for rank in range(world_size)]
        assert one.samples["time_ms"] == [max(call) for call in zip(*by_rank, strict=True)]
        assert one.values["busbw_gb_per_s"] > 0


def rank(number: int, world_size: int, seed: int = 0):
    import torch

    place = SimpleNamespace(rank=number, world_size=world_size)
    return SimpleNamespace(place=place, device=torch.device("cpu"), backend="gloo", seed=seed)


def exchanged(operation: str, size_bytes: int, dtype: str, world_size: int) -> list[Exchange]:
    """All ranks' buffers after the collective, done here without a process group."""
    import torch

    every = [Exchange(Message(operation, size_bytes, dtype), rank(r, world_size)) for r in range(world_size)]
    for one in every:
        one.fill()
    sources = [one.source.clone() for one in every]
    total = sum(sources[1:], start=sources[0])
    for number, one in enumerate(every):
        share = slice(number * one.share, (number + 1) * one.share)
        results = {
            "all_reduce": lambda: total,
            "broadcast": lambda: sources[0],
            "all_gather": lambda: torch.cat(sources),
            "reduce_scatter": lambda share=share: total[share],
            "all_to_all": lambda share=share: torch.cat([source[share] for source in sources]),
        }
        one.target.copy_(results[operation]())
        one.call = lambda: None
        one.fill = one.clear = lambda: None
    return every


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("size_bytes", "dtype"), [(600, "fp32"), (5_000_000, "fp32"), (6000, "bf16"), (6000, "fp16")])
def test_a_check_sees_one_wrong_element_and_swapped_chunks(operation, size_bytes, dtype):
    for one in exchanged(operation, size_bytes, dtype, 3):
        assert one.check() == one.target.numel()
        right = one.target.clone()
        one.target[one.target.numel() * 2 // 3] += 1
        with pytest.raises(
            ArithmeticError, match=rf"^{operation}: 1 of {one.target.numel()} elements are wrong on rank"
        ):
            one.check()
        one.target.copy_(right.roll(1))
        with pytest.raises(ArithmeticError):
            one.check()
        half = right.numel() // 2
        one.target[:half], one.target[half : 2 * half] = right[half : 2 * half], right[:half].clone()
        with pytest.raises(ArithmeticError):
            one.check()


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter", "all_to_all"])
def test_a_check_takes_no_result_of_an_earlier_exchange_for_its_own(operation):
    for one in exchanged(operation, 600, "fp32", 3):
        assert one.check()
        del one.clear
        with pytest.raises(ArithmeticError, match=f"{one.target.numel()} of {one.target.numel()} elements are wrong"):
            one.check()


def test_a_wrong_result_names_the_collective_and_the_rank():
    with pytest.raises(RankError) as caught:
        launch("test_collectives:sums_badly", {}, world_size=2, timeout_s=60)
    assert str(caught.value) == "rank 1 of 2: ArithmeticError: all_reduce: 250 of 250 elements are wrong on rank 1"


def sums_badly(arguments, rank):
    exchange = Exchange(Message("all_reduce", 1000), rank)
    right = exchange.call
    exchange.call = lambda: (right(), exchange.target.add_(rank.place.rank))
    return exchange.check()


def test_waiting_for_a_rank_that_still_fills_is_not_in_the_time():
    (first, _) = launch("test_collectives:fills_late", {}, world_size=2, timeout_s=60).results
    assert min(first) < 1e3 * LATE_S / 2


def fills_late(arguments, rank):
    """The times in ms of calls for which rank 1 fills its buffers late."""
    fill = Exchange.fill
    Exchange.fill = lambda exchange: (fill(exchange), time.sleep(LATE_S * rank.place.rank))
    (said,) = collectives.run_on_rank({"messages": [asdict(Message("all_reduce", 4096, warmup=1, timed=3))]}, rank)
    return said["samples_ms"]


def test_sums_are_exact_in_each_dtype_for_any_number_of_ranks():
    for dtype in EXACT_UP_TO:
        for world_size in (2, 16, 64, 256):
            one = Exchange(Message("all_reduce", 8192, dtype), rank(0, world_size))
            total = sum(block.double() for block in one._blocks)
            assert (sum(one._blocks[1:], start=one._blocks[0]).double() == total).all()
            assert one._blocks[0].any() and not one._blocks[0].equal(one._blocks[1])


def test_the_time_of_a_call_is_the_slowest_ranks_and_the_middle_call_counts():
    def said(*samples_ms: float) -> dict:
        same = {"timer": CUDA_EVENTS, "warmup_s": 1.0, "timed_s": 2.0, "message_bytes": 3 * 10**6}
        return same | {"samples_ms": samples_ms, "warmup_ms": (9.0,), "elements_checked": 5, "nccl_version": "2.28.9"}

    found = combine(Message("all_gather", 3 * 10**6), [said(1.0, 2.0, 3.0), said(4.0, 1.0, 2.5), said(1.0, 1.0, 1.0)])
    assert found.samples["time_ms"] == [4.0, 2.0, 3.0]
    assert found.values["algbw_gb_per_s"] == pytest.approx(1.0)
    assert found.values["busbw_gb_per_s"] == pytest.approx(2 / 3)
    assert (found.values["elements_checked"], found.values["nccl_version"]) == (15, "2.28.9")
    assert found.series["rank_1_ms"] == (4.0, 1.0, 2.5)
    assert (found.warmup_s, found.timed_s, found.timers) == (1.0, 2.0, {"time_ms": CUDA_EVENTS})


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"operation": "gossip"}, "operation 'gossip': expected one of all_reduce"),
        ({"dtype": "tf32"}, "dtype 'tf32': expected one of fp32, bf16, fp16"),
        ({"size_bytes": 0}, "expected size_bytes and timed from 1"),
        ({"timed": 0}, "expected size_bytes and timed from 1"),
        ({"timer": "sundial"}, "timer 'sundial': expected host clock or CUDA events"),
    ],
)
def test_messages_that_cannot_be(message, text):
    with pytest.raises(ValueError, match=text):
        Message(**({"operation": "all_reduce", "size_bytes": 8} | message))


def test_messages_that_the_ranks_refuse():
    for message, text in (
        (Message("all_reduce", 4), "ValueError: size_bytes 4: expected at least 8, an element a rank"),
        (Message("all_reduce", 8, timer=CUDA_EVENTS), "ValueError: timer 'CUDA events': gloo waits on the host"),
    ):
        with pytest.raises(RankError) as caught:
            time_collectives([message], world_size=2, timeout_s=60)
        assert text in str(caught.value)


def test_a_collective_that_a_backend_lacks_is_unsupported():
    message = Message("all_to_all", 8, "bf16")
    error = RuntimeError("ProcessGroupGloo does not support alltoall")
    found = collectives._as_unsupported(error, message, rank(0, 2))
    assert isinstance(found, Unsupported) and str(found) == "gloo has no all_to_all of bf16 on cpu"
    other = RuntimeError("Connection closed by peer")
    assert collectives._as_unsupported(other, message, rank(0, 2)) is other


# --- transports -------------------------------------------------------------------------------------------------


def test_switches_of_each_transport(monkeypatch):
    def switched(backend: str, name: str, log: bool = False, **before: str) -> dict[str, str]:
        transport.set_switches(before, backend, name, log)
        return before

    assert switched("nccl", "default", NCCL_NVLS_ENABLE="0") == {"NCCL_NVLS_ENABLE": "0"}
    assert switched("nccl", "nvlink", NCCL_P2P_DISABLE="1")["NCCL_P2P_DISABLE"] == "0"
    assert "NCCL_NVLS_ENABLE" not in switched("nccl", "nvlink")
    assert switched("nccl", "shm")["NCCL_P2P_DISABLE"] == "1" and switched("nccl", "shm")["NCCL_SHM_DISABLE"] == "0"
    tcp = switched("nccl", "tcp", NCCL_SOCKET_IFNAME="ib0")
    assert (tcp["NCCL_SHM_DISABLE"], tcp["NCCL_NET"], tcp["NCCL_SOCKET_IFNAME"]) == (
        "1",
        "Socket",
        transport.LOOPBACK_INTERFACE,
    )
    logged = switched("nccl", "default", log=True, NCCL_DEBUG="WARN", NCCL_DEBUG_FILE="/x")
    assert logged == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING"}
    assert switched("gloo", "tcp") == {"GLOO_SOCKET_IFNAME": transport.LOOPBACK_INTERFACE}
    assert switched("gloo", "tcp", GLOO_SOCKET_IFNAME="eth0") == {"GLOO_SOCKET_IFNAME": "eth0"}


# In the forms that NCCL 2.28 prints; sizes, channels and addresses are examples.
NCCL_LOG = """\
[W] something else
host:10:10 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
host:10:10 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 - Init START
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
    assert log.choice("all_to_all", 2**20, 2) is None and log.choice("all_reduce", 77, 2) is None


@pytest.mark.parametrize(
    ("said", "way"),
    [
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM"),
        ("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0", "NET/Socket"),
        ("Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA", "NET/IB"),
        ("Channel 30/0 : 0[0] -> 1[6] via P2P/direct pointer", "P2P"),
    ],
)
def test_connections_in_short(said, way):
    assert parse_nccl_log([f"host:1:1 [0] NCCL INFO {said}"]).connections == (way,)


class LinkedNvml(fake_nvml.FakeNvml):
    """GPUs joined by NVSwitch, directly, or by PCIe alone. nvlinks: active links of each; remote: where they lead."""

    NVML_NVLINK_MAX_LINKS = 18

    def __init__(self, gpus: int, nvlinks: int, remote: str = "switch", level: int = 40) -> None:
        super().__init__(gpus)
        self.nvlinks, self.remote, self.level = nvlinks, remote, level

    def nvmlDeviceGetP2PStatus(self, one, other, index):
        assert index == 2
        return 0 if self.nvlinks else 4

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
        return self.level

    def nvmlDeviceGetNvLinkState(self, gpu, link):
        if link >= 18:
            raise fake_nvml.NVMLError("Invalid Argument")
        return int(link < self.nvlinks)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu, link):
        return 2 if self.remote == "switch" else 0

    def nvmlDeviceGetPciInfo(self, gpu):
        return SimpleNamespace(busId=f"bus of {gpu.uuid}")

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu, link):
        others = [one for one in self.gpus if one is not gpu]
        return self.nvmlDeviceGetPciInfo(others[link % len(others)])


@pytest.mark.parametrize(
    ("nvml", "kinds"),
    [
        (LinkedNvml(3, 18), ["NV18", "NV18", "NV18"]),
        (LinkedNvml(3, 12, "gpu"), ["NV6", "NV6", "NV6"]),
        (LinkedNvml(2, 0), ["NODE"]),
        (LinkedNvml(2, 0, level=50), ["SYS"]),
        (LinkedNvml(1, 18), []),
        (fake_nvml.FakeNvml(2), [None]),
    ],
)
def test_links_between_gpus(nvml, kinds):
    found = transport.links(nvml, nvml.gpus)
    assert [link.kind for link in found] == kinds
    assert [(link.first, link.second) for link in found] == [(0, 1), (0, 2), (1, 2)][: len(kinds)]


def test_nvlink_is_refused_where_it_is_known_to_be_missing(monkeypatch):
    monkeypatch.setattr(
        transport, "visible_links", lambda count: transport.links((nvml := LinkedNvml(count, 0)), nvml.gpus)
    )
    with pytest.raises(Unsupported, match=r"^GPUs 0 and 1 are joined by NODE, not by NVLink$"):
        transport.require_nvlink(2)
    monkeypatch.setattr(
        transport, "visible_links", lambda count: [transport.Link(0, 1, None), transport.Link(0, 2, "NV4")]
    )
    transport.require_nvlink(3)


def test_without_nccl_or_nvml_there_is_nothing_to_say():
    import torch

    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    assert transport.nccl_version() is None
    assert transport.visible_links(2) == []
