"""Tables and figure of custom_multi_gpu."""

from collections.abc import Mapping
from dataclasses import replace

from perfscribe.analytic.workshop_shapes import BLOOM_TOKENIZER_VOCABULARY, SimpleGptShape
from perfscribe.experiments.fsdp import trainings as c
from perfscribe.experiments.fsdp.custom_multi_gpu.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.training.launching import SHAPE, TUNED

LOOPS_NOTES = (
    "Bare loop: fully_shard without Trainer; tuned: bf16, compiled, with a batch chosen by memory.",
    "Efficiency: samples/s of steps alone per rank, over those of the loop's first row.",
)
CAPTION = "Efficiency by loop: samples per second of steps alone per rank, over those of the loop's first row."


def _as_scripts_run(record: Record) -> int:
    """Return the number of parameters with BLOOM's vocabulary, which the workshop's scripts always use."""
    shape = SimpleGptShape(**{name: record.factors[name] for name in SHAPE})
    return replace(shape, vocab_size=BLOOM_TOKENIZER_VOCABULARY).parameters


# The workshop's nine columns, then ours.
COLUMNS = [
    *c.SETUP,
    t.value("train_samples_per_second", "Samples/s (Default)"),
    c.SAMPLES_CALLBACK,
    c.gib("avg_mem_total_MB", "GPU Memory (GiB, Default)", "avg_mem_total_gb"),
    c.MEMORY_CALLBACK,
    c.UTILISATION,
    c.LOSS,
    c.RUNTIME,
    t.factor("vocab_size", "Vocabulary"),
    t.value("parameters", "Parameters", exact=True),
    t.Column("source_parameters", "Parameters, as its scripts run", _as_scripts_run, kind="unshown"),
    c.FIRST_LOSS,
    *c.WORKLOAD,
    *t.settings("num_layers", "hidden_size"),
    c.SAMPLES_STEPPING,
    c.MEMORY_PEAK,
    c.MEMORY_RESERVED,
    c.MFU,
    *c.STEPS,
    *c.SPENT,
    *c.WRAPPED,
]
LOOPS = [
    *c.SETUP,
    *t.factors(loop="Loop", device="Device", dtype="Dtype"),
    c.ROWS_PER_STEP,
    c.SAMPLES_STEPPING,
    t.value("rate_efficiency", "Efficiency (%)", column="efficiency"),
    c.MFU,
    c.MEMORY_PEAK,
    *c.STEPS,
    *c.WRAPPED,
]


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the workshop's tables of one node and of several (one loop, not tuned), and all loops on one node."""
    rows = c.rows(records["custom_multi_gpu"])
    # The workshop's tables show each device's first loop that is not tuned.
    loop = {r.factors["device"]: r.factors["loop"] for r in reversed(rows) if r.factors["loop"] != TUNED}
    one_node, nodes = c.by_placement([r for r in rows if r.factors["loop"] == loop.get(r.factors["device"])])
    loops, _ = c.by_placement(rows)
    return [
        t.make("fsdp.custom_multi_gpu", "Custom model on several GPUs of one node", one_node, COLUMNS, [c.CLOCKS_NOTE]),
        t.make("fsdp.custom_multi_node", "Custom model on several nodes", nodes, COLUMNS, [c.CLOCKS_NOTE]),
        t.make("fsdp.custom_loops", "Trainer, a bare loop, and a tuned one", loops, LOOPS, LOOPS_NOTES),
    ]


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of all loops' efficiency over ranks."""
    loops = f.of(tables["fsdp.custom_loops"].ok, c.efficiency)
    return [f.Figure(SHOWN.figures[0], CAPTION, loops, sample="step_ms")]
