"""Programs that tests launch on ranks: some that work, some that fail, each in its own way."""

import ctypes
import os
import signal
import subprocess
import time
from dataclasses import asdict


def reduce(rank) -> float:
    """The sum of all ranks' numbers, by a collective."""
    import torch
    import torch.distributed as dist

    number = torch.tensor([float(rank.place.rank)])
    dist.all_reduce(number)
    return number.item()


def works(arguments, rank):
    import torch

    drawn = torch.rand(1).item()
    variables = {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "KEPT")}
    return {
        "sum": reduce(rank),
        "drawn": drawn,
        "arguments": arguments,
        "place": asdict(rank.place),
        "threads": torch.get_num_threads(),
        "variables": variables,
        "pid": os.getpid(),
    }


def stays(arguments, rank):
    """Logs as NCCL does, and tells its process."""
    with open(os.environ["NCCL_DEBUG_FILE"], "a") as log:
        log.write(f"{arguments['text']} by rank {rank.place.rank}\n")
    return os.getpid()


def burns(arguments, rank):
    """Use CPU time."""
    end = time.process_time() + arguments["seconds"]
    while time.process_time() < end:
        pass


def faulty(arguments, rank):
    """Rank 1 fails as arguments["fault"] says, between two collectives; the others wait for it."""
    reduce(rank)
    if rank.place.rank == 1:
        FAULTS[arguments["fault"]](arguments)
    return reduce(rank)


def _allocate(_):
    import torch

    torch.empty(2**50, dtype=torch.uint8)


def _raise(_):
    raise ValueError("a bad value\nand more lines")


def _refuse(_):
    from perfscribe.base.cells import Unsupported

    raise Unsupported("needs a quantum computer")


def _differ(_):
    from perfscribe.instruments.correctness import WrongResult

    raise WrongResult("the sum is off")


def _linger(arguments):
    """Leave a process behind and fail."""
    with open(arguments["pid_file"], "w") as out:
        out.write(str(subprocess.Popen(["sleep", "123456"]).pid))
    os.kill(os.getpid(), signal.SIGKILL)


def hold_the_interpreter(_=None):
    """Sleep in C without letting any other thread run Python."""
    ctypes.PyDLL(None).sleep(123456)


FAULTS = {
    "raises": _raise,
    "hangs": lambda _: time.sleep(123456),
    "holds_the_interpreter": hold_the_interpreter,
    "out_of_memory": _allocate,
    "unsupported": _refuse,
    "wrong": _differ,
    "lingers": _linger,
}


def writes_pids_and_hangs(arguments, rank):
    grandchild = subprocess.Popen(["sleep", "123456"])
    with open(f"{arguments['folder']}/{rank.place.rank}", "w") as out:
        out.write(f"{os.getpid()} {grandchild.pid}\n")
    hold_the_interpreter()


def over_a_slow_link(arguments, rank):
    """The self-test where every all-reduce that reaches over the link between two ranks takes longer."""
    import torch.distributed as dist

    from perfscribe.distributed import self_test

    quick = dist.all_reduce

    def slow(tensor, *rest, group=None, **options):
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        if set(arguments["slow"]) <= set(members) and tensor.numel() > 1000:
            time.sleep(arguments["delay_s"])
        return quick(tensor, *rest, group=group, **options)

    dist.all_reduce = slow
    return self_test.on_rank(arguments, rank)
