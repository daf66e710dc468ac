"""One rank of a launch: finds its place, joins the process group, runs the program, reports to the launcher.

The program is a function named "package.module:function". It takes the launch's arguments and a Rank, runs within an
initialised process group and returns a JSON value.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import itertools
import json
import os
import platform
import random
import re
import resource
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing import forkserver
from typing import IO, TYPE_CHECKING, Any, NoReturn

from perfscribe.base import error_kinds
from perfscribe.base.cells import Unsupported
from perfscribe.base.processes import die_with
from perfscribe.distributed import hosts, links, ranks, transport
from perfscribe.distributed.channel import Channel
from perfscribe.instruments.correctness import WrongResult

if TYPE_CHECKING:
    import torch

NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING"}
ORDER_VARIABLE = "PERFSCRIBE_LAUNCH"  # the order, as JSON, for a rank started by an external launcher
STACK_FRAMES = 30
NO_LIMIT = timedelta(days=1)  # of collectives: the launcher ends a hang, and tells which rank is to blame
LINE_CHARACTERS = 300  # length of a reason in a record: an error's first line with the launcher's prefix
PREFIX_CHARACTERS = 24  # the launcher's prefix, such as "rank 123 of 128: "
# Ends of NCCL's errors if its own buffers found no memory on the GPU: CUDA's text, or the allocation that failed.
_NCCL_OUT_OF_MEMORY = re.compile(r"Cuda failure (?:2 )?'out of memory'")
_NCCL_NOT_ALLOCATED = re.compile(r"unhandled cuda error.*Failed to CUDA (?:calloc|malloc)", re.DOTALL)


@dataclass(frozen=True)
class Rank:
    """Arguments that a program gets in addition to its own."""

    place: ranks.Place
    device: torch.device
    backend: str
    seed: int


def begin(order: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Run main() in a process of multiprocessing's fork server, with this environment."""
    # The server lives as long as this end of a pipe is open somewhere; it is to end with the launcher.
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    os.environ.clear()
    os.environ.update(environment)
    main(order)


def main(order: Mapping[str, Any]) -> None:
    """Join the others and run the program until asked to leave.

    Exits the process: status 0 after a result, 1 after a reported error.
    """
    die_with()
    with contextlib.suppress(OSError):  # a session leader leads a group already
        os.setpgid(0, 0)  # so that the program's children are killed with it, also after its death
    connected = partial(Channel, order["address"], order["token"], answers={"stack": stack})
    try:
        place = _find(order["world_size"])
    except ValueError as error:
        connected(-1).send({"error": _as_message(error)})
        _leave(1)
    channel = connected(place.rank)
    faulthandler.enable()
    try:
        log = _nccl_log() if order["nccl_log"] else io.StringIO()
        me = _join(order, place)
        while (arguments := channel.next_work()) is not None:
            channel.send({"result": _run(order["program"], arguments, me), "log": log.read().splitlines()})
    except BaseException as error:
        channel.send({"error": _as_message(error)})
        _leave(1)
    _leave(0)


def _find(world_size: int) -> ranks.Place:
    place = ranks.find(os.environ, host=platform.node())
    if place.world_size != world_size:
        raise ValueError(f"asked for {world_size} ranks, but {place.source} started {place.world_size}")
    return place


def _leave(code: int) -> NoReturn:
    """Exit at once: exit handlers of libraries may wait for ranks that are gone."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _nccl_log() -> IO[str]:
    """Let NCCL log its choices into a file without a name; returns it."""
    log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
    os.environ |= {**NCCL_LOG, "NCCL_DEBUG_FILE": f"/proc/self/fd/{log.fileno()}"}
    return log


def _join(order: Mapping[str, Any], place: ranks.Place) -> Rank:
    _share_memory_limit(place)
    host, _, port = order["store"].rpartition(":")
    if host != transport.LOOPBACK:
        _use_interface_towards(host)
    transport.set_switches(os.environ, order["backend"], order["transport"])
    import torch.distributed as dist

    device = settle(order, place)
    store = dist.TCPStore(host, int(port), is_master=False, timeout=NO_LIMIT)  # type: ignore[attr-defined]
    dist.init_process_group(
        order["backend"],
        store=store,
        rank=place.rank,
        world_size=place.world_size,
        timeout=NO_LIMIT,
        device_id=device if order["backend"] == "nccl" else None,
    )
    return Rank(place, device, order["backend"], order["seed"])


def _use_interface_towards(host: str) -> None:
    """Set gloo's interface, whose name differs between machines; an existing GLOO_SOCKET_IFNAME stays."""
    with contextlib.suppress(OSError):  # the rank then reports what it cannot reach
        name = hosts.interface_towards(host)
        if name is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _run(program: str, arguments: Mapping[str, Any], me: Rank) -> Any:
    import torch

    module, _, function = program.partition(":")
    result = getattr(importlib.import_module(module), function)(arguments, me)
    if me.device.type == "cuda":
        torch.cuda.synchronize(me.device)
    return result


def settle(order: Mapping[str, Any], place: ranks.Place) -> torch.device:
    """Set threads and seeds, and select this rank's device."""
    import torch

    torch.set_num_threads(order["threads"])
    torch.backends.cudnn.allow_tf32 = False
    random.seed(order["seed"] + place.rank)
    torch.manual_seed(order["seed"] + place.rank)
    if order["device"] == "cpu":
        return torch.device("cpu")
    index = ranks.device_index(place, torch.cuda.device_count())
    torch.cuda.set_device(index)
    if order["transport"] == "nvlink":
        links.require_nvlink(place.local_world_size or torch.cuda.device_count())
    return torch.device("cuda", index)


def _share_memory_limit(place: ranks.Place) -> None:
    """Divide the inherited memory limit among the ranks of the node, because it is for the whole machine."""
    limit, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != resource.RLIM_INFINITY and place.local_world_size:
        resource.setrlimit(resource.RLIMIT_DATA, (limit // place.local_world_size, hard))


def _as_message(error: BaseException) -> dict[str, Any]:
    from perfscribe.instruments.memory import is_oom

    first_line = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, Unsupported | WrongResult):
        kind = error_kinds.UNSUPPORTED if isinstance(error, Unsupported) else error_kinds.WRONG_RESULT
        text = first_line
    else:
        out_of_memory = is_oom(error) or _is_nccl_out_of_memory(error)
        kind = error_kinds.OUT_OF_MEMORY if out_of_memory else error_kinds.EXCEPTION
        text = f"{type(error).__name__}: {first_line}".rstrip(": ")
    text = text[: LINE_CHARACTERS - PREFIX_CHARACTERS].rstrip()
    if isinstance(error, SystemExit):
        text = f"left with exit code {error.code}"
    details = "".join(traceback.format_exception(error))[-4000:]
    return {"text": text, "kind": kind, "details": details, "time_s": time.time()}


def _is_nccl_out_of_memory(error: BaseException) -> bool:
    """Return whether NCCL found no memory for its buffers.

    Allocation also fails after a kernel has broken the context; but then the device no longer answers.
    """
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return bool(_NCCL_OUT_OF_MEMORY.search(text) or (_NCCL_NOT_ALLOCATED.search(text) and _device_answers()))


def _device_answers() -> bool:
    import torch

    try:
        torch.cuda.mem_get_info()
    except (AssertionError, RuntimeError):  # no device, or one whose context is broken
        return False
    return True


def stack() -> dict[str, Any]:
    """Return the main thread's innermost frames (file, line, function), and how many collectives it has begun."""
    main_thread = sys._current_frames().get(threading.main_thread().ident or 0)
    walked = itertools.islice(traceback.walk_stack(main_thread), STACK_FRAMES)
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked]
    return {"frames": frames, "collectives": _collectives_begun()}


def _collectives_begun() -> int | None:
    """Return torch's count of collectives in the groups of all ranks; None if there is none yet."""
    torch = sys.modules.get("torch")
    try:
        world = torch.distributed.distributed_c10d if torch else None
        if world is None:
            return None
        everyone = world._get_default_group().size()
        groups = [group for group in list(world._world.pg_map) if group.size() == everyone]
        return sum(int(group._get_sequence_number_for_group()) for group in groups)
    except (AttributeError, RuntimeError, ValueError):
        return None


if __name__ == "__main__":
    main(json.loads(os.environ.pop(ORDER_VARIABLE)))
