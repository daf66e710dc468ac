"""A rank of a placement under Nsight Systems, started by torchrun: its steps, of which the active ones are in a range.

`torchrun … -m perfscribe.experiments.communication.traced_rank PLACEMENT PORT`; PORT is that of traced.py's store.
"""

from __future__ import annotations

import json
import os
import platform
import random
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from perfscribe.distributed import ranks, transport
from perfscribe.distributed.link_rates import visible_rates
from perfscribe.distributed.rank import Rank
from perfscribe.distributed.transport import LOOPBACK
from perfscribe.experiments.communication.measure import LIMIT_S, TRANSPORTS, order_of_turns, range_name
from perfscribe.experiments.communication.program import Training, training_of
from perfscribe.instruments.profiling.ranges import annotate
from perfscribe.instruments.timing import synchronise


def join(request: Mapping[str, Any], placement: str) -> Rank:
    """Join the placement's process group, as torchrun's variables say."""
    factors, place = request["factors"], ranks.find(os.environ, host=platform.node())
    backend, way = factors["backend"], TRANSPORTS[placement]
    transport.set_switches(os.environ, backend, way)
    threads = max(1, len(os.sched_getaffinity(0)) // factors["world_size"])
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = False
    random.seed(request["seed"] + place.rank)
    torch.manual_seed(request["seed"] + place.rank)
    device = torch.device(factors["device"])
    if device.type == "cuda":
        device = torch.device("cuda", ranks.device_index(place, torch.cuda.device_count()))
        torch.cuda.set_device(device)
    own = device if backend == "nccl" else None
    dist.init_process_group(backend, timeout=timedelta(seconds=LIMIT_S), device_id=own)
    return Rank(place, device, backend, way, request["seed"], threads)


def take_turn(training: Training, factors: Mapping[str, Any], rank: Rank, name: str) -> list[float]:
    """The schedule's steps, the active ones in a range of this name; ms of these by the host clock.

    The device is waited for at the end of each step, so that the range holds them whole.
    """
    dist.barrier()
    synchronise(rank.device)
    for _ in range(factors["wait"] + factors["warmup_steps"]):
        training.step()
        synchronise(rank.device)
    spent = []
    with annotate(name):
        for _ in range(factors["active"]):
            began = time.perf_counter()
            training.step()
            synchronise(rank.device)
            spent.append((time.perf_counter() - began) * 1e3)
    return spent


def main(placement: str, port: str) -> None:
    """Take all turns of the placement; what each gave goes to the store, and a failure too, before it ends the rank."""
    store = dist.TCPStore(  # type: ignore[attr-defined]
        LOOPBACK, int(port), is_master=False, timeout=timedelta(seconds=LIMIT_S)
    )
    try:
        request = json.loads(store.get("request"))
        factors, rank = request["factors"], join(request, placement)
        training = training_of(factors, rank)
        links = [vars(link) for link in visible_rates(2)] if rank.device.type == "cuda" else []
        for turn, name in order_of_turns(factors["turns"]):
            if name != placement:
                continue
            store.wait([f"begin {placement} {turn}"])
            step_ms = take_turn(training, factors, rank, range_name(placement, turn, rank.place.rank))
            said = {"step_ms": step_ms, "gradient_bytes": training.gradient_bytes, "links": links}
            store.set(f"said {placement} {turn} {rank.place.rank}", json.dumps(said))
        training.wrapped.release()
        dist.destroy_process_group()
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        store.set("error", f"{placement}, rank {os.environ.get('RANK')}: {type(error).__name__}: {lines[0]}")
        raise


if __name__ == "__main__":
    main(*sys.argv[1:3])
