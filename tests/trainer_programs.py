"""Programs of ranks in which accelerate takes gloo's processes for GPUs, so that Trainer's FSDP runs without one.

Ranks are forked from a process that has imported transformers, as those of a measuring job are. That server lives as
long as the process that launches them, and the first to start it says what it imports: in a worker of pytest that is
some other file's test, and each rank imports the rest, for seconds.
"""

import dataclasses
import os
from collections.abc import Mapping
from multiprocessing import forkserver
from typing import Any

from perfscribe.distributed.needs import PRELOADED
from perfscribe.distributed.starting import start_server
from perfscribe.training import launching

# What PRELOADED of the experiments that train so names.
MODULES = (*PRELOADED, launching.MODULE, launching.BLOOMS_CODE)


def preload() -> None:
    """Fork the ranks of launches to come from such a process; those that run go on below theirs."""
    server = forkserver._forkserver
    if server._forkserver_pid and not set(MODULES) <= set(server._preload_modules):
        server._forkserver_pid = None  # its end of the pipe stays open, and with it the server
    start_server(MODULES)


def train_as_on_gpus(arguments: Mapping[str, Any], rank: Any) -> dict[str, Any]:
    """on_ranks.on_rank, but that accelerate is told of GPUs, whose memory is the CPU's."""
    from perfscribe.training import on_ranks

    _pretend(arguments)
    return on_ranks.on_rank(arguments, rank)


def overflow_on_one_rank(arguments: Mapping[str, Any], rank: Any) -> dict[str, Any]:
    """Two fp16 steps of the bare loop with the AdamW that it has on GPUs; in the first rank 1's loss is infinite."""
    import torch
    from torch.distributed.tensor import DTensor

    from perfscribe.distributed import fsdp
    from perfscribe.training import bare_loop, knobs

    bare_loop.FUSED_ON = ("cpu",)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    fsdp.shard(model, [], "fp16", "fp16")
    factor = [float("inf") if rank.place.rank == 1 else 1.0, 1.0]

    def loss(module: Any, batch: Any, items: Any) -> Any:
        return module(batch["rows"]).float().mean() * factor[0]

    loop = bare_loop.Loop(model, knobs.Knobs(device="cuda", fp16=True), rank.device, loss)
    weight: Any = model.weight
    scales, moved, counted = [loop.scaler.get_scale()], [], []
    while factor:
        before = weight.to_local().clone()
        loop.step([{"rows": torch.ones(2, 8)}], 1, 1.0)
        scales.append(loop.scaler.get_scale())
        moved.append(not torch.equal(before, weight.to_local()))
        counted.append(float(loop.optimizer.state[weight]["step"]))
        del factor[0]
    own = {"fused": loop.optimizer.defaults["fused"], "divided": isinstance(weight, DTensor)}
    return {**own, "scales": scales, "moved": moved, "counted": counted}


def _pretend(arguments: Mapping[str, Any]) -> None:
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    from accelerate import state
    from accelerate.utils import DistributedType

    from perfscribe.training import trainer

    state.PartialState._prepare_backend = lambda self, cpu=False, *_, **__: ("gloo", DistributedType.MULTI_GPU)
    made = trainer.arguments

    def arguments_of(knobs: Any, folder: Any, **more: Any) -> Any:
        on_gpu = dataclasses.replace(knobs, device="cuda", fp16=arguments["factors"].get("low", False))
        more |= {"use_cpu": False, "dataloader_pin_memory": False, "ddp_backend": "gloo"}
        if more.get("fsdp_config", {}).get("version") == 1:
            more["fsdp_config"] |= {"sync_module_states": False}  # which asks for a real device
        return made(on_gpu, folder, **more)

    trainer.arguments = arguments_of
