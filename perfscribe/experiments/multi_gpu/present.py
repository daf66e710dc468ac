"""Tables, figure and answers of multi_gpu."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe import training_answers as answers
from perfscribe import training_columns as c
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table
from perfscribe.training_prediction import Links
from perfscribe.training_rows import by_placement, measured_steps, rows

TABLES = ("fsdp.multi_gpu", "fsdp.multi_node", "fsdp.multi_gpu_prediction")
FIGURES = ("fsdp.multi_gpu",)
READS = ("all_reduce", "communication_nodes")
CAPTION = (
    "Samples a second by Trainer's default figure over GPUs, measured and predicted, and what as many times the first "
    "row's would be."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """One node, several nodes, steps predicted."""
    links = Links.of(records)
    every = rows(records["multi_gpu"], links)
    one, several = by_placement(every)
    notes = [c.DEFAULT_NOTE, c.SCALE_NOTE, c.WRAPPED_NOTE]
    return [
        t.make(TABLES[0], "BLOOM on several GPUs of one node", one, columns(), [*notes, *c.predicted_notes(one)]),
        t.make(
            TABLES[1], "BLOOM on several nodes", several, columns(), [*notes, *c.predicted_notes(several), c.NODES_NOTE]
        ),
        t.make(TABLES[2], "Steps predicted", measured_steps(every), c.prediction(), [c.PREDICTION_NOTE]),
    ]


def columns() -> list[t.Column]:
    """The workshop's eight columns, then ours."""
    samples_scale, runtime_scale = c.scales()
    first, total, origin = c.setup()
    asked = [first, total, c.samples_default(), samples_scale, c.runtime(), runtime_scale, c.loss()]
    own = [c.samples_stepping(), c.memory_peak(), *c.steps(), *c.wrapped(), c.rows_from()]
    trained = [t.factor("model_name", "Model"), c.optimizer_steps(), *c.workload()]
    return [*asked, c.memory_default(), origin, *trained, *own]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Samples/s over GPUs."""
    draw = partial(answers.draw_scaling, rows=tables[TABLES[0]].ok, y="train_samples_per_second")
    return [f.Figure(FIGURES[0], CAPTION, draw, sample="step_ms")]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """How far it scales; what several nodes would give; how good the prediction is."""
    one, several, steps = (tables[name].ok for name in TABLES)
    return [
        find("fsdp.multi_gpu", TABLES[:1], lambda: answers.scaling(answers.main_rows(one))),
        find("fsdp.multi_node", TABLES[1:2], lambda: answers.nodes(several)),
        find("fsdp.multi_gpu_prediction", TABLES[2:], lambda: answers.prediction(steps)),
    ]
