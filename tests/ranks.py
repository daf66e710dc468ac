"""Run a function in several gloo ranks and take back what it returns, pickled."""

import base64
import importlib
import pickle
from collections.abc import Callable
from typing import Any

from perfscribe.distributed.launch import launch
from perfscribe.distributed.needs import PRELOADED
from perfscribe.distributed.starting import start_server


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
    """Return the results of function(rank, *args) in each of world_size gloo processes, in the order of the ranks.

    function: of the top level of a module, with a default process group made for it.
    RankError: a rank raised, died or took longer than a minute; by then all of them have ended.
    """
    start_server((*PRELOADED, "torch.nn.parallel.distributed", "pytest"))
    arguments = {"module": function.__module__, "function": function.__name__, "args": _to_text(args)}
    return [_from_text(result) for result in launch(call, arguments, world_size=world_size, timeout_s=60)]


def call(arguments, rank) -> str:
    """On a rank: one thread, and torch's generator as a process finds it, alike on all ranks."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.default_generator.manual_seed(0)
    function = getattr(importlib.import_module(arguments["module"]), arguments["function"])
    result = function(rank.place.rank, *_from_text(arguments["args"]))
    dist.barrier()  # nobody leaves while another still sends
    return _to_text(result)


def _to_text(what: Any) -> str:
    return base64.b64encode(pickle.dumps(what)).decode()


def _from_text(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))
