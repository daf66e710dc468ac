"""Tables, figures and answers of communication."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.communication import agreement, answers, columns, drawings, rates, rows, single
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table

NAME = "communication"
READS = ("all_reduce",)
TABLES = (
    "polaris.communication",
    "polaris.communication_ranks",
    "polaris.communication_bandwidth",
    "polaris.communication_operators",
    "polaris.communication_trainings",
    "polaris.communication_profiler",
)
FIGURES = ("polaris.communication_wait", "polaris.communication_profiler")

PLACE_NOTE = (
    "inter: 2 nodes x 1 rank, intra: 1 node x 2 ranks. On one machine the two nodes are two processes joined by TCP "
    "over "
    "the loopback interface, forced by NCCL's switches; gloo has nothing but TCP, so that with it both placements are "
    "the same."
)
METRIC_NOTE = (
    "Of rank 0, over the active steps of one profile (wait, warm-up, active as configured): the homework's "
    "definitions. "
    "Communication: NCCL's kernels; on a CPU the collectives as gloo's threads work on them. Device time: kernels, "
    "copies "
    "and memsets; on a CPU the time in operators, and the collectives. Mean latency: total over calls. inter and intra "
    "are medians over turns, in which the placements take turns; Impact is the ratio of medians and its interval "
    "resamples turns (bootstrap). It is refused where the calls are not equally many. A figure has no more digits than "
    "its spread over turns leaves it; what is computed of it is computed before it is rounded."
)
TOOL_NOTE = (
    "torch_profiler: a part of each rank, which traces the active steps of every turn. nsys: Nsight Systems around all "
    "ranks of both placements, which torchrun starts; it traces all they do, of which the active steps of every turn, "
    "in an NVTX range, are read from its SQLite export. Runs of their own."
)
WAIT_NOTE = (
    "A collective's time on a rank holds its wait for the other. Transfer: for each collective the least time of any "
    "rank, as the last one to come waits for nobody; waiting: the rest of that rank's time. What disturbs the last "
    "rank counts as transfer, so that it is an upper bound. Collectives are matched by size and order; of nsys, which "
    "tells no sizes, by order alone. Where several are under way at once, their times add up to more than passes. "
    "Total, transfer, waiting and all else (the rank's other kernels, copies and memsets; on a CPU its operators) are "
    "sums over the active steps, step their mean by the host clock."
)
RATE_NOTE = (
    "Rate: bytes of gradients over time, times 2(n - 1)/n, which is 1 for two ranks: what goes over the pair's link in "
    "each direction. GB = 10^9 bytes. Waiting counted: over rank 0's total, as a reader of the homework's table would "
    "divide. Rated: NVLinks of the pair, as the driver counts them, times the rate of one, by the driver or else by "
    "NVIDIA's data sheets. Plain all-reduces are those of the experiment all_reduce. Homework 000: what its total of "
    "two steps implies for the homework's own model."
)
OPERATORS_NOTE = (
    "The head of torch's key_averages table of the first profile, of the third and fourth step; it is no sample of the "
    "tables above, and on a GPU it records memory too. Whole tables, as CSV, and Chrome traces lie below traces/ of "
    "the site's results on the machine that measured; they are not published."
)
TRAINING_NOTE = (
    "One rank under DistributedDataParallel, which then sends nothing to anybody. A profiled training holds one "
    "profile and the writing of its trace. Homework 001 ran ten epochs, without a warm-up, its one profile spread over "
    "them; a mean epoch of it stands beside ours of the same model, samples and batch."
)
STATES_NOTE = (
    "Host clock, the device waited for before and after each step; a turn's median of each state. Profiler attached: "
    "waiting and warming up are states of its schedule; done: the schedule has ended and the profiler is still asked "
    "after each step. A whole profile is compared with as many plain steps of the same turn. Longer by: difference of "
    "both medians; against plain steps: their ratio, its interval over turns (bootstrap)."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The homework's table; ranks; rates; key_averages; trainings; states of the profiler."""
    own = records[NAME]
    notes = [PLACE_NOTE, METRIC_NOTE, TOOL_NOTE]
    rated = rates.bandwidth(own, records.get("all_reduce", []))
    made = (
        ("Communication across nodes and within one", rows.metrics(own), columns.metrics(), notes),
        ("Transfer and waiting on each rank", rows.ranks(own), columns.ranks(), [PLACE_NOTE, WAIT_NOTE]),
        ("Effective bandwidth beside the links'", rated, columns.bandwidth(), [RATE_NOTE]),
        ("What takes most time, by key_averages", rows.operators(own), columns.operators(), [OPERATORS_NOTE]),
        ("One rank, profiled and not", single.trainings(own), columns.trainings(), [TRAINING_NOTE]),
        ("A step in each state of the profiler", single.states(own), columns.states(), [STATES_NOTE]),
    )
    return [
        t.make(table_id, title, shown, of, notes)
        for table_id, (title, shown, of, notes) in zip(TABLES, made, strict=True)
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """What the homework asks, and what its published answers leave open."""
    metrics, ranks, rated, _, trainings, states = (tables[table_id].ok for table_id in TABLES)
    return [
        find("polaris.communication_cost", TABLES[:2], lambda: answers.cost(metrics, ranks)),
        find("polaris.communication_calls", TABLES[:1], lambda: answers.calls(metrics)),
        find("polaris.communication_wait", TABLES[1:2], lambda: answers.waiting(ranks)),
        find("polaris.communication_bandwidth", TABLES[2:3], lambda: answers.bandwidth(rated)),
        find("polaris.communication_tools", TABLES[:1], lambda: agreement.tools(tables[TABLES[0]].frame)),
        find("polaris.communication_links", TABLES[2:3], lambda: answers.links(rated)),
        find("polaris.communication_profiler", TABLES[4:6], lambda: answers.profiler(trainings, states)),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Transfer and waiting by rank, below them rates; states of the profiler."""
    ranks, rated, states = (tables[TABLES[number]].ok for number in (1, 2, 5))
    parts = (partial(drawings.waiting, rows=ranks), partial(drawings.bandwidth, rows=rated))
    return [
        f.Figure(
            FIGURES[0],
            "Above: communication of each rank by each tool, of the active steps of a profile: transfer, and on top of "
            "it waiting for the other rank. Medians over turns; the panels have scales of their own. Below: rate in "
            "each direction: of training's gradients by transfer alone and with waiting counted, of plain all-reduces "
            "over message size, and what the links between the GPUs are rated at where that is known.",
            f.stacked(*parts, heights=(3.4, 4.0)),
            (7.0, 7.2),
            sample="total_ms",
        ),
        f.Figure(
            FIGURES[1],
            "One rank's training step in each state of the profiler, median over turns by the host clock, bars as long "
            "as the interquartile range.",
            partial(drawings.states, rows=states),
            (7.0, 2.8),
            sample="time_ms",
        ),
    ]
