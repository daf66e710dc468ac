"""Tables, figure and answers of custom_multi_gpu."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe import training_answers as shared
from perfscribe import training_columns as c
from perfscribe.experiments.custom_multi_gpu import answers, published
from perfscribe.experiments.custom_multi_gpu.measure import TUNED
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table
from perfscribe.training_prediction import Links
from perfscribe.training_rows import by_placement, measured_steps, rows

TABLES = (
    "fsdp.custom_multi_gpu",
    "fsdp.custom_multi_node",
    "fsdp.custom_twins",
    "fsdp.custom_loops",
    "fsdp.custom_prediction",
    "fsdp.published",
)
FIGURES = ("fsdp.custom_scaling",)
READS = ("all_reduce", "communication_nodes")
LOOPS_NOTE = (
    "trainer: the workshop's. bare loop: the same rows, batches, schedule and clipping around fully_shard, without "
    "Trainer; AdamW, too, on GPUs fused as Trainer's is by default, but with decay of biases and norms, which Trainer "
    "spares, and on a CPU not fused. tuned: bf16, layers and loss compiled, the batch raised until the peak is the "
    "asked share of the memory, one rank divided by FSDP, too; a step is of another size there, and each takes the "
    "same rows again. Efficiency: samples/s of steps alone, a rank, over those of the first row of the same loop."
)
CAPTION = (
    "Samples a second over ranks; what is predicted is drawn hollow. Above: the same trainings by three clocks, "
    "Trainer's default, the workshop's callback, and steps alone. Below: steps alone, by what trains; dashed: in "
    "proportion to ranks."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The workshop's two, each figure beside its twin, the loops, steps predicted, what others publish."""
    links = Links.of(records)
    every = rows(records["custom_multi_gpu"], links)
    asked = [record for record in every if answers.is_workshops(record)]
    one, several = by_placement(asked)
    loops, _ = by_placement(every)
    steps = [r for r in measured_steps(every) if r.factors["loop"] != TUNED]
    mfu = c.mfu_notes(records["custom_multi_gpu"])
    notes = [c.DEFAULT_NOTE, c.CALLBACK_NOTE, c.TWIN_NOTE, c.WRAPPED_NOTE, *mfu]
    return [
        t.make(
            TABLES[0], "Custom model on several GPUs of one node", one, columns(), [*notes, *c.predicted_notes(one)]
        ),
        t.make(
            TABLES[1],
            "Custom model on several nodes",
            several,
            columns(),
            [*notes, *c.predicted_notes(several), c.NODES_NOTE],
        ),
        t.make(TABLES[2], "Callback figures and their twins", one, twins(), [c.CALLBACK_NOTE, c.TWIN_NOTE, *mfu]),
        t.make(
            TABLES[3],
            "Trainer, its peer, and tuned",
            loops,
            loop_columns(),
            [LOOPS_NOTE, *mfu, *c.predicted_notes(loops)],
        ),
        t.make(TABLES[4], "Steps predicted", steps, c.prediction(), [c.PREDICTION_NOTE]),
        t.make(
            TABLES[5],
            "fully_shard as others publish it",
            published.rows(every),
            published.columns(),
            [published.note()],
        ),
    ]


def columns() -> list[t.Column]:
    """The workshop's nine columns, then ours."""
    first, total, origin = c.setup()
    asked = [first, total, c.samples_default("Samples/s (Default)"), c.samples_callback()]
    asked += [c.memory_default("GPU Memory (GB, Default)"), c.memory_callback(), c.utilisation(), c.loss(), c.runtime()]
    own = [c.samples_stepping(), c.memory_peak(), t.value("mfu", "MFU (%)"), *c.steps(), *c.wrapped(), c.rows_from()]
    return [*asked, origin, *model(), c.optimizer_steps(), *c.workload(), *own]


def model() -> list[t.Column]:
    """Which model is trained; in the CSV the size of the one that the workshop's scripts run, and the first loss."""
    return [
        t.factor("vocab_size", "Vocabulary"),
        t.value("parameters", "Parameters", exact=True),
        t.Column("source_parameters", "Parameters, as its scripts run", answers.as_scripts_run, kind="unshown"),
        t.Column("first_loss", "First loss logged", answers.first_loss, kind="unshown"),
    ]


def twins() -> list[t.Column]:
    """Every figure of the callbacks by its own name, and beside each that misleads the right one."""
    first, total, origin = c.setup()
    return [
        first,
        total,
        origin,
        t.factor("loop", "Loop"),
        t.value("train/samples_per_second_mean", "train/samples_per_second_mean", column="callback_samples_per_s"),
        c.samples_stepping(),
        t.value("steps/s", "steps/s", column="callback_steps_per_s"),
        t.value("stepping_steps/s", "steps/s of steps alone", column="stepping_steps_per_s"),
        t.value("avg_gpu_util_%", "avg_gpu_util_%", column="avg_gpu_util_percent"),
        t.value("std_gpu_util_%", "std_gpu_util_%", column="std_gpu_util_percent"),
        t.value("mfu", "MFU (%)"),
        *(t.value(f"{kind}_mem_{what}_MB", f"{kind}_mem_{what}_MB") for what in MEMORIES for kind in ("avg", "peak")),
    ]


MEMORIES = ("alloc", "reserved", "total")


def loop_columns() -> list[t.Column]:
    """What each loop makes of the ranks."""
    first, total, origin = c.setup()
    return [
        first,
        total,
        origin,
        t.factor("loop", "Loop"),
        t.factor("device", "Device"),
        t.factor("dtype", "Dtype"),
        t.derived("batch", "Rows a rank and step", answers.rows_per_step, exact=True),
        c.samples_stepping(),
        t.derived("efficiency", "Efficiency (%)", lambda r: r.values["rate_efficiency"] if r.ok else None),
        t.value("mfu", "MFU (%)"),
        c.memory_peak(),
        t.derived("over_bare", "Step over the bare loop's (×)", lambda r: r.values["over_bare"] if r.ok else None),
        *c.steps(),
        *c.wrapped(),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Three clocks over ranks; the loops over ranks."""
    rates = partial(answers.draw_rates, rows=tables[TABLES[0]].ok)
    loops = partial(shared.draw_scaling, rows=tables[TABLES[3]].ok, y="stepping_samples_per_second")
    return [f.Figure(FIGURES[0], CAPTION, f.stacked(rates, loops), (7.0, 6.6), sample="step_ms")]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Scaling; which model, and its losses; the callbacks' figures; memory; Trainer; tuning; the prediction."""
    one, several, twin, loops, steps, others = (tables[name].ok for name in TABLES)
    return [
        find("fsdp.custom_multi_gpu", TABLES[:1], lambda: answers.scaling(one)),
        find("fsdp.custom_model", TABLES[:1], lambda: answers.model(one)),
        find("fsdp.custom_losses", TABLES[:1], lambda: answers.losses(one)),
        find("fsdp.custom_multi_node", TABLES[1:2], lambda: shared.nodes(several)),
        find("fsdp.custom_rates", TABLES[2:3], lambda: answers.rates(one)),
        find("fsdp.custom_memory", TABLES[2:3], lambda: answers.memory(twin)),
        find("fsdp.trainer_overhead", TABLES[3:4], lambda: answers.trainer_overhead(loops)),
        find("fsdp.tuned", TABLES[3:4], lambda: answers.tuned(loops)),
        find("fsdp.custom_prediction", TABLES[4:5], lambda: shared.prediction(steps)),
        find("fsdp.published", TABLES[5:], lambda: published.kept(others)),
    ]
