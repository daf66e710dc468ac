"""Keys of experiments.rank_methods with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from perfscribe.base.cells import Cell
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import Form, choice, choices, constant, experiment, section, texts, whole, wholes
from perfscribe.distributed import needs
from perfscribe.distributed.mpi_start import MODULO, SPLIT
from perfscribe.experiments.polaris.rank_methods.measure import (
    BOUND,
    GUIDE_BINDING,
    HERE,
    HOMEWORK_BINDING,
    LAUNCHED,
    POLARIS,
    SIZES,
)

BINDING = Form(
    "^(even|nearest|(list|map_cpu|mask_cpu):[0-9a-fA-Fx,:-]+)$",
    "even, nearest, or list:, map_cpu: or mask_cpu: and numbers of cores",
)
LEVELS = experiment(
    "Ways to find rank, world size and local rank, under several launchers; binding of ranks to cores",
    rounds=shared.ROUNDS,
    launcher=choices(
        "open_mpi, mpich, pals: each one's mpiexec | slurm: srun within a job | perfscribe: our own launcher",
        ["perfscribe", "torchrun", "open_mpi", "mpich", "pals", "slurm"],
        ["torchrun", "open_mpi", "slurm"],
        tiny=["perfscribe"],
        gpu=["torchrun", "open_mpi", "mpich", "pals", "slurm"],
    ),
    backend=choice("gloo: training on the CPU | nccl: a GPU for each rank", ["gloo", "nccl"], "gloo", gpu="nccl"),
    world_size=wholes("ranks, all on one machine; bindings: the largest", 1, 64, [4], gpu=[1, 2, 4]),
    samples=constant(128, tiny=32, gpu=2048),  # of the training, which ranks share
    source_length=constant(1),
    target_length=constant(20),
    features=constant(128, tiny=32, gpu=512),
    layers=constant(1, gpu=6),
    d_ff=constant(512, tiny=64, gpu=2048),
    batch=whole("samples of a rank in a step", 1, 65_536, 8, gpu=32),
    epochs=whole("times that training goes through the samples", 1, 1000, 3, tiny=2, gpu=10),
    warmup_steps=constant(3, tiny=1, gpu=5),
    binding=section(
        "ranks that are bound to cores and tell what they were granted",
        launcher=choices(
            "open_mpi | mpich | pals | slurm", ["open_mpi", "mpich", "pals", "slurm"], ["open_mpi"], empty=True
        ),
        cpu_bind=texts(
            "even: cores dealt out | nearest: those nearest to each rank's GPU | PALS's or Slurm's lists",
            BINDING,
            ["even"],
            tiny=[],
            gpu=["list:0,1:8,9:16,17:24,25", "list:24,25:16,17:8,9:0,1", "even", "nearest"],
        ),
    ),
)

SHOWN = Shown(tables=("polaris.rank_methods", "polaris.rank_bindings"))

# MPI first, as in the homework; the launcher's environment variables last.
METHODS_OF = {"perfscribe": ("torchrun",), "torchrun": ("torchrun",)} | {
    name: (MODULO, SPLIT, name) for name in ("open_mpi", "mpich", "pals", "slurm")
}


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return launches by launcher and method, then bindings."""
    device, most = needs.DEVICES[config["backend"]], max(config["world_size"])
    several = min((ranks for ranks in config["world_size"] if ranks > 1), default=1)
    sizes = {name: config[name] for name in SIZES}
    planned = []
    for place, (launcher, ranks) in enumerate(product(config["launcher"], config["world_size"])):
        fixed = {"backend": config["backend"], "device": device, "world_size": ranks, **sizes}
        # One rank requires the GPUs of several: it too runs without other jobs, and only where they can be compared.
        requires = (*needs.of_ranks(device, max(ranks, several)), *(["srun_mpi"] if launcher == "slurm" else []))
        # A single rank has nothing to find: one method is enough to time it.
        for method in METHODS_OF[launcher][: 1 if ranks == 1 else None]:
            factors = {"part": LAUNCHED, "launcher": launcher, "method": method, **fixed}
            planned.append(Cell(factors, requires=requires, cost=10.0 + place))
    binding = config["binding"]
    bound = [(HERE, launcher, text, most, 1.0) for launcher in binding["launcher"] for text in binding["cpu_bind"]]
    bound += [(POLARIS, "pals", text, 4, 0.0) for text in (HOMEWORK_BINDING, GUIDE_BINDING)]
    names = ("machine", "launcher", "cpu_bind", "world_size")
    planned += [Cell({"part": BOUND, **dict(zip(names, levels, strict=True))}, cost=cost) for *levels, cost in bound]
    return planned
