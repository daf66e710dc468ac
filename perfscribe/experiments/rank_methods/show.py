"""Tables of rank methods."""

from __future__ import annotations

from collections.abc import Mapping

from perfscribe.experiments import epoch_columns
from perfscribe.experiments.rank_methods import rows
from perfscribe.experiments.rank_methods.levels import SHOWN
from perfscribe.experiments.rank_methods.words import LAUNCHERS, METHODS
from perfscribe.records.records import Record
from perfscribe.show import references
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

TABLES = SHOWN.tables
# What the write-ups trained: the homework's program.
HOMEWORK = {"features": epoch_columns.HOMEWORK_WIDTH, **epoch_columns.HOMEWORK}
ANOTHER_WORKLOAD = "another workload"
METHODS_NOTE = (
    "Each row is what the method says on that rank; without GPUs rank mod devices takes as many devices as there are "
    "ranks. Training: the homework's model by data parallelism, one run per method, host clock."
)
BINDINGS_NOTE = (
    "Granted masks are those of sched_getaffinity; local rank = GPU. Anti-affine: none of the rank's cores is among "
    "those nearest to its GPU, by NVML, for Polaris by ALCF's guide."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Every rank by every method; bindings."""
    of = records["rank_methods"]
    return [
        t.make(TABLES[0], "Ranks as each method finds them", rows.by_rank(of), _by_rank(), [METHODS_NOTE]),
        t.make(TABLES[1], "Binding of ranks to cores", rows.by_binding(of), _by_binding(), [BINDINGS_NOTE]),
    ]


def _launcher() -> t.Column:
    return t.Column("launcher", "Launcher", lambda r: LAUNCHERS[r.factors["launcher"]], kind="factor", exact=True)


def _published(record: Record) -> float | str:
    """A write-up's time of the same method with as many ranks; beside the homework's own sizes alone."""
    f = record.factors
    found = references.find(
        references.load("rank_methods"), "training_s", method=f["method"], world_size=f["world_size"]
    )
    if not found:
        return "none"
    return found[0].shown if record.has(**HOMEWORK) else ANOTHER_WORKLOAD


def _by_rank() -> list[t.Column]:
    """What the method says of a rank, where the rank runs, and its training."""
    return [
        _launcher(),
        t.Column("method", "Method", lambda r: METHODS[r.factors["method"]], kind="factor", exact=True),
        t.factor("rank", "Global rank"),
        t.value("world_size_said", "World size", exact=True),
        t.value("local_rank", "Local rank", exact=True),
        t.value("host", "Host", exact=True),
        t.value("used_device", "Device", exact=True),
        t.value("mask", "CPU mask", exact=True),
        t.value("cores", "Cores granted", exact=True),
        t.value("cores_count", "Number", exact=True),
        t.value("agreement", "Agreement", exact=True),
        t.value("rank_training_s", "Training, this rank (s)"),
        t.value("training_s", "Training, slowest rank (s)"),
        t.Column("published_s", "Training, published (s)", _published, kind="published", exact=True),
        t.value("first_epoch_s", "First epoch (s)"),
        t.value("later_epoch_s", "Later epochs (s)"),
        t.value("samples_per_s", "Samples/s"),
    ]


def _by_binding() -> list[t.Column]:
    """What was asked, granted, published and near."""
    mask = t.Column(
        "published_mask", "Mask, published", lambda r: rows.published_mask(r, r.factors["rank"]), kind="published"
    )
    return [
        t.factor("machine", "Machine"),
        _launcher(),
        t.factor("cpu_bind", "Binding"),
        t.factor("rank", "Local rank"),
        t.value("asked_cores", "Cores asked", exact=True),
        t.value("asked_mask", "Expected mask", exact=True),
        t.value("granted_mask", "Granted mask", exact=True),
        mask,
        t.value("as_asked", "As asked", exact=True),
        t.value("gpu", "GPU", exact=True),
        t.value("gpu_cores", "Its nearest cores", exact=True),
        t.value("nearness", "Binding is", exact=True),
    ]
