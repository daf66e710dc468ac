"""Tables, figure and answers of what terms measured apart say of more ranks than there are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.scaling_model import answers, collective_rows, columns, drawings, rows
from perfscribe.experiments.scaling_model.links import ModelledLinks
from perfscribe.findings import Finding, find
from perfscribe.node_network import ALL_REDUCE, Network
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = (
    "cs336.collectives_terms",
    "cs336.collectives_predicted",
    "fsdp.scaling_terms",
    "fsdp.scaling_predicted",
)
FIGURES = ("fsdp.scaling",)
READS = ("all_reduce",)
READS_IF_MEASURED = ("custom_multi_gpu", "ddp", "multi_gpu", "weak_scaling", "communication_nodes")
CAPTION = (
    "Over ranks, both axes logarithmic: a training step; its efficiency against one rank by the model, weak (left) and "
    "strong (right) scaling; an all-reduce by message size, tinted between ring and tree. Filled, solid: measured "
    "(medians; steps by the host clock, NCCL's collectives by CUDA events, gloo's by the host clock). Hollow, dashed: "
    "the model's. Grey: model only, beyond the reach of any measured count. No point beyond this machine knows the "
    "network of a cluster, but where it was measured."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The collectives' terms and predictions, then the trainings'."""
    own = records[ALL_REDUCE]
    links = ModelledLinks(own, Network.of(records.get("communication_nodes", [])))
    models = rows.models(records, links)
    of_steps = [columns.STEP_NOTE, columns.FSDP_NOTE, columns.DDP_NOTE]
    made = (
        ("Latency and bandwidth over ranks", collective_rows.fitted(own), columns.fitted(), [columns.HOPS_NOTE]),
        (
            "All-reduce among more ranks",
            collective_rows.over_ranks(own, links),
            columns.over_ranks(),
            [columns.HOPS_NOTE, columns.SIZES_NOTE, columns.LINKS_NOTE],
        ),
        ("Terms of a training step", rows.terms(models), columns.terms(), [*of_steps, columns.LEFT_OUT_NOTE]),
        (
            "Training on more ranks",
            rows.predicted(models),
            columns.predicted(),
            [columns.STEP_NOTE, columns.PREDICTED_NOTE, columns.REACH_NOTE],
        ),
    )
    return [
        t.make(table_id, title, shown, of, notes)
        for table_id, (title, shown, of, notes) in zip(TABLES, made, strict=True)
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Steps, efficiencies and all-reduces over ranks."""
    messages, steps = tables[TABLES[1]].ok, tables[TABLES[3]].ok
    parts = (
        partial(drawings.steps, rows=steps),
        partial(drawings.efficiencies, rows=steps),
        partial(drawings.messages, rows=messages),
    )
    return [f.Figure(FIGURES[0], CAPTION, f.stacked(*parts, heights=(3.4, 3, 3)), (7.0, 9.4))]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Which algorithm; whether the terms hold; what limits; what the textbook's laws make of it."""
    fitted, messages, terms, steps = (tables[name].ok for name in TABLES)
    return [
        find("cs336.collectives_algorithm", TABLES[:1], lambda: answers.algorithm(fitted)),
        find("cs336.collectives_predicted", TABLES[1:2], lambda: answers.messages(messages)),
        find("fsdp.scaling_terms", TABLES[2:3], lambda: answers.terms(terms)),
        find("fsdp.scaling_limits", TABLES[2:], lambda: answers.limits(steps, terms)),
        find("fsdp.scaling_textbook", TABLES[2:], lambda: answers.textbook(steps, terms)),
    ]
