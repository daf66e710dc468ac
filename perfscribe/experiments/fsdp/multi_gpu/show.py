"""Tables and figure of multi_gpu."""

from collections.abc import Mapping

from perfscribe.experiments.fsdp import trainings as c
from perfscribe.experiments.fsdp.multi_gpu.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t

# The workshop's eight columns, then ours.
COLUMNS = [
    *c.SETUP,
    t.value("train_samples_per_second", "Samples/s"),
    t.value("samples_scale", "Samples/s Scale Factor"),
    c.RUNTIME,
    t.value("runtime_scale", "Runtime Scale Factor"),
    c.LOSS,
    c.gib("avg_mem_total_MB", "GPU Memory Allocated (GiB)", "avg_mem_total_gb"),
    t.factor("model_name", "Model"),
    *c.WORKLOAD,
    c.ROWS_PER_STEP,
    c.SAMPLES_STEPPING,
    c.MEMORY_PEAK,
    c.MEMORY_RESERVED,
    c.MFU,
    *c.STEPS,
    *c.SPENT,
    *c.WRAPPED,
]
CAPTION = (
    "Samples per second of whole trainings (tuned: of its steps); bars: range over rounds; dashed: linear scaling."
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the table of one node and that of several."""
    one_node, nodes = c.by_placement(c.rows(records["multi_gpu"]))
    return [
        t.make("fsdp.multi_gpu", "BLOOM on several GPUs of one node", one_node, COLUMNS, [c.SCALE_NOTE]),
        t.make("fsdp.multi_node", "BLOOM on several nodes", nodes, COLUMNS, [c.SCALE_NOTE]),
    ]


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of samples/s over GPUs."""
    rows, rate, stepping = tables["fsdp.multi_gpu"].ok, "train_samples_per_second", "stepping_samples_per_second"
    for end in ("", "_spread"):  # the range over rounds, where there are several
        if rate + end in rows:
            rows = rows.assign(**{rate + end: rows[rate + end].where(rows["loop"] != "tuned", rows[stepping + end])})
    draw = f.of(rows, c.samples_per_s, y=rate)
    return [f.Figure(SHOWN.figures[0], CAPTION, draw, sample="step_ms")]
