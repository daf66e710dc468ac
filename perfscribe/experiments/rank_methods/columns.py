"""Columns of the tables of rank methods."""

from __future__ import annotations

from perfscribe import epoch_columns, references
from perfscribe import tables as t
from perfscribe.experiments.rank_methods import rows
from perfscribe.experiments.rank_methods.words import LAUNCHERS, METHODS
from perfscribe.records import Record

# What the write-ups trained: the homework's program.
HOMEWORK = {"features": epoch_columns.HOMEWORK_WIDTH, **epoch_columns.HOMEWORK}
ANOTHER_WORKLOAD = "another workload"


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


def by_rank() -> list[t.Column]:
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


def by_launch() -> list[t.Column]:
    """Every method's verdict under a launch."""
    return [
        _launcher(),
        t.factor("origin", "Origin"),
        t.factor("placement", "Placement"),
        t.value("ranks", "Ranks on nodes", exact=True),
        *(t.value(method, title, exact=True) for method, title in METHODS.items()),
        t.value("source", "Source", exact=True),
    ]


def by_placement() -> list[t.Column]:
    """Local ranks by three methods beside the right one."""
    return [
        _launcher(),
        t.factor("placement", "Placement"),
        t.factor("rank", "Global rank"),
        t.value("node", "Node", exact=True),
        t.value("gpus", "GPUs of the node", exact=True),
        t.value("true_local_rank", "Local rank, right", exact=True),
        t.value("modulo", "Rank mod devices", exact=True),
        t.value("modulo_verdict", "It is", exact=True),
        t.value("shared_with", "Shares its GPU with", exact=True),
        t.value("split", "COMM_TYPE_SHARED", exact=True),
        t.value("own", "Launcher's variable", exact=True),
    ]


def by_binding() -> list[t.Column]:
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
