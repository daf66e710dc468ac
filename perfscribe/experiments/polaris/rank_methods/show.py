"""Tables of the ways in which a process learns its rank, and of launchers' core bindings."""

from collections.abc import Mapping, Sequence
from typing import Any

from perfscribe.base import cpu_sets
from perfscribe.distributed import binding, mpi_start
from perfscribe.experiments.polaris.rank_methods.levels import SHOWN
from perfscribe.experiments.polaris.rank_methods.measure import BOUND, HOMEWORK_BINDING, LAUNCHED, POLARIS
from perfscribe.records.records import Record
from perfscribe.show import references
from perfscribe.show import tables as t

TABLES = SHOWN.tables
NAME = "rank_methods"
NO_GPU = "no GPU"
NEAR_EVERY = "near every GPU"
LAUNCHERS = {
    "perfscribe": "Perfscribe's own",
    "torchrun": "torchrun",
    "open_mpi": "mpiexec (Open MPI)",
    "mpich": "mpiexec (MPICH)",
    "pals": "mpiexec (PALS)",
    "slurm": "srun (Slurm)",
}
ASKING_MPI = {mpi_start.MODULO: "mpi4py, rank mod devices", mpi_start.SPLIT: "mpi4py, COMM_TYPE_SHARED"}
METHODS = {**ASKING_MPI, **mpi_start.BY_VARIABLES}
METHODS_NOTE = (
    "Each row is what the method says on that rank; without GPUs rank mod devices takes as many devices as there are "
    "ranks. Training: the homework's model by data parallelism, one run per method, host clock; bound: epochs "
    "between these, each rank's threads kept by sched_setaffinity to its part of the cores, on GPUs of those nearest "
    "to its GPU."
)
BINDINGS_NOTE = (
    "Granted masks are those of sched_getaffinity; local rank = GPU. Anti-affine: none of the rank's cores is among "
    "those nearest to its GPU, by NVML, for Polaris by ALCF's guide; near every GPU: all have the same ones."
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the table of every rank by every method, and that of bindings."""
    launches, bindings = (t.having(records[NAME], part=part) for part in (LAUNCHED, BOUND))
    launched = t.expanded(launches, ["rank"], lambda r: [(n, _launched(r, n)) for n in range(len(r.series["node"]))])
    bound = t.expanded(bindings, ["rank"], lambda r: [(n, _bound(r, n)) for n in range(len(r.series["asked"]))])
    return [
        t.make(TABLES[0], "Ranks as each method finds them", launched, LAUNCHED_COLUMNS, [METHODS_NOTE]),
        t.make(TABLES[1], "Binding of ranks to cores", bound, BOUND_COLUMNS, [BINDINGS_NOTE]),
    ]


# --- launches ---------------------------------------------------------------------------------------------------


def _launched(record: Record, rank: int) -> dict[str, Any]:
    """Return a rank's sizes by the method, its host, device and cores, and the whole run's times."""
    numbers, mask = record.series[f"said_{record.factors['method']}"][rank], record.series["mask"][rank]
    bound = record.series.get("bound_mask")
    return {
        "world_size_said": numbers[1],
        "local_rank": numbers[2],
        "host": record.series["host"][rank],
        "used_device": record.series["device"][rank],
        "mask": mask,
        "cores": cpu_sets.shown(cpu_sets.cores_of_mask(mask)),
        "training_s": t.summary(record, "training_s").median,
        "bound_cores": cpu_sets.shown(cpu_sets.cores_of_mask(bound[rank])) if bound else None,
        "bound_training_s": t.summary(record, "bound_training_s").median if bound else None,
    }


LAUNCHER = t.named("launcher", "Launcher", LAUNCHERS)
LAUNCHED_COLUMNS = [
    LAUNCHER,
    t.named("method", "Method", METHODS),
    t.factor("rank", "Global rank"),
    *t.exact(world_size_said="World size", local_rank="Local rank", host="Host", used_device="Device"),
    *t.exact(mask="CPU mask", cores="Cores granted"),
    t.value("training_s", "Training, slowest rank (s)"),
    t.value("bound_cores", "Cores, bound", exact=True),
    t.value("bound_training_s", "Training, bound (s)"),
    *t.settings("world_size", "epochs", "samples", "batch"),
]


# --- bindings ---------------------------------------------------------------------------------------------------


def _bound(record: Record, rank: int) -> dict[str, Any]:
    """Return a rank's requested and granted cores, and how near they are to its GPU."""
    requested = record.series["asked"][rank]
    granted, nearest = record.series["granted"], record.series["gpu_cores"]
    mask = granted[rank] if granted and granted[rank].startswith("0x") else requested
    near = binding.parse_cpu_bind(f"list:{nearest[rank]}")[0] if rank < len(nearest) else None
    return {
        "asked_cores": cpu_sets.shown(cpu_sets.cores_of_mask(requested)),
        "asked_mask": requested,
        "granted_mask": granted[rank] if granted else "of another machine",
        "gpu": rank if near else NO_GPU,
        "nearness": _nearness(mask, near, nearest) if near else NO_GPU,
    }


def _nearness(mask: str, near: cpu_sets.Cores, of_gpus: Sequence[str]) -> str:
    found = binding.nearness(cpu_sets.cores_of_mask(mask), near)
    return NEAR_EVERY if found == binding.NEAR and len(set(of_gpus)) == 1 < len(of_gpus) else found


def _published_mask(record: Record) -> str:
    """Return the published mask of this rank (Polaris, the homework's binding), else "none"."""
    comparable = record.has(machine=POLARIS, cpu_bind=HOMEWORK_BINDING)
    entries = references.find(NAME, "cpu_mask", rank=record.factors["rank"]) if comparable else []
    return entries[0].text if entries else "none"


BOUND_COLUMNS = [
    t.factor("machine", "Machine"),
    LAUNCHER,
    *t.factors(cpu_bind="Binding", rank="Local rank"),
    *t.exact(asked_cores="Cores asked", asked_mask="Expected mask", granted_mask="Granted mask"),
    t.Column("published_mask", "Mask, published", _published_mask, kind="published"),
    *t.exact(gpu="GPU", nearness="Binding is"),
]
