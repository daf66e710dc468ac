"""Keys of experiments.preflight with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import choice, choices, experiment, number, section, timeout, whole, wholes

LEVELS = experiment(
    "All-reduce that is tried before trainings on several processes; these are skipped where it is too slow",
    timeout_s=timeout(180),
    backend=choices(
        "gloo: processes on the CPU | nccl: a GPU for each", ["gloo", "nccl"], ["gloo"], gpu=["gloo", "nccl"]
    ),
    world_size=wholes(
        "numbers of processes; a training on another number is tested on that", 2, 1024, [2, 3, 4], gpu=[2, 4, 8]
    ),
    nodes=wholes(
        "nodes of a cluster's job with processes on each; one machine skips them",
        2,
        1024,
        [2],
        gpu=[2, 4, 8],
        empty=True,
    ),
    ranks_per_node=wholes("processes on each of them, 1 as the workshop's job scripts test", 1, 1024, [1]),
    program=choice(
        "auto: NVIDIA's all_reduce_perf for nccl where it is on PATH, else our own loop | own", ["auto", "own"], "auto"
    ),
    size_mib=section(
        "size of the fp32 array that is reduced, in MiB",
        gloo=number("with gloo", 0.001, 1_048_576, 16, tiny=1, gpu=64),
        nccl=number("with nccl", 0.001, 1_048_576, 4096),
    ),
    warmup=whole("calls before the timed ones", 1, 1000, 5, tiny=2, gpu=20),
    iterations=whole("timed calls", 3, 100_000, 20, tiny=5, gpu=50),
    threshold_gb_per_s=section(
        "bus bandwidth below which trainings on as many processes are skipped; 0: none. 100 Mbit/s are 0.0125 GB/s",
        gloo=number("in GB/s, with gloo", 0, 100_000, 0.01),
        nccl=number("in GB/s, with nccl", 0, 100_000, 5),
    ),
    algorithm=choice(
        "NCCL_ALGO during the test alone: Ring, Tree, …; null: NCCL chooses",
        [None, "Ring", "Tree", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree"],
        None,
    ),
)

SHOWN = Shown(tables=("fsdp.preflight",))
