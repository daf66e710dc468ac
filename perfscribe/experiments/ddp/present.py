"""Tables, figures and answers of ddp."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.ddp import alone, answers, columns, counts, drawings, overhead, rows
from perfscribe.experiments.ddp import variants as v
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = (
    "cs336.ddp_check",
    "cs336.ddp_benchmark",
    "cs336.ddp_phases",
    "cs336.ddp_compared",
    "cs336.ddp_timeline",
    "cs336.ddp_bucketed",
    "cs336.ddp_overhead",
    "cs336.ddp_published",
    "cs336.ddp_timeline_spans",
)
READS = ("all_reduce",)  # for what the same bytes take by themselves
FIGURES = ("cs336.ddp_steps", "cs336.ddp_timeline", "cs336.ddp_buckets")

CHECK_NOTE = (
    "A small model in the cell's dtype on its devices, before anything is timed: its parameters after a few steps of "
    "SGD with the batch shared among the ranks, against those of one process that saw the whole batch. The error is "
    "that of the tensor with the largest, relative to its change. Afterwards the timed model's gradients are compared: "
    "they must be the same to the last bit on all ranks."
)
STEP_NOTE = (
    "A step is forward, backward, averaging of gradients and AdamW, by the host clock, which waits for the device "
    "before and after it; the slowest rank counts. All implementations of a cell take turns around the same parameters "
    "in the same processes, in an order that is reversed from turn to turn; each turn has steps with communication and "
    "without, and its first steps are not counted. Buckets: MB = 10⁶ bytes, in reverse order of registration. "
    "torch_ddp: DistributedDataParallel with its own buckets (25 MiB, the first one smaller); it sends no buffers."
)
COMMUNICATION_NOTE = (
    "Communicating: of naive and flat the time from the end of backward until all gradients are averages, in steps "
    "that wait for the device after each phase, of which it is the share; of the others the exposed part. Exposed: a "
    "step less one without communication, median over turns, which noise may make negative; its interval holds the "
    "median of turns, whatever their distribution; naive's, of which it is a part in percent, is exposed in steps of "
    "the same kind, which wait for nothing in between. torch_ddp without communication is no_sync(), which leaves out "
    "its copies as well."
)
PHASES_NOTE = (
    "Medians of steps that wait for the device after each phase. Of overlap_individual, what is left to wait for when "
    "backward is over. Copies: into the flat tensor and back. Rate: bytes sent times 2(n - 1)/n over the time without "
    "copies, as all-reduces are compared. By themselves: as many all-reduces of as many bytes one after the other, by "
    "the latency and bandwidth of all-reduces among as many ranks; what communication takes longer is waiting for "
    "other ranks or for the host."
)
COMPARED_NOTE = (
    "Ratio of medians over turns; the interval resamples turns (bootstrap). Faster or slower: the interval excludes 1. "
    "Peak: of the allocator in one step, of the rank with most; the parameters, gradients and moments are in it."
)
TIMELINE_NOTE = (
    "One step of rank 0 under the torch profiler, which slows it. On a GPU kernels: communication are those of NCCL, "
    "which also run while they wait for another rank. On a CPU the operators, and the collectives as gloo's threads "
    "work on them. Of several bucket sizes the middle one is traced."
)
COUNTS_NOTE = (
    "Step over the least's: sizes that give as many buckets are one program, whose turns are taken together; against "
    "the number of buckets whose step is least, turn by turn. Faster or slower: the interval excludes 1."
)
OVERHEAD_NOTE = (
    "Exposed = s / (n_b·w) + n_b·o, the handout's model: what shows of the communication is the last bucket's and a "
    "fixed time o for each of n_b; s bytes of gradients, w bytes a second. Least squares over the bucket sizes and "
    "over overlap_individual, whose gradients are a bucket each; neither term below 0. Best: n_b = √(s/(o·w)), buckets "
    "of √(s·w·o). A tensor is never split, so that no more buckets than tensors are possible. Nothing is "
    "fitted where the intervals of all exposed times hold 0, or where residuals are above half of them, both as root "
    "mean square."
)
PUBLISHED_NOTE = (
    "Published figures stand where a source has all the levels that it states in common with the row; what it does not "
    "state may differ. brandon-snider: two H100s, global batch, TF32; communication timed. The note on 2 x H100 states "
    "neither batch nor context."
)
STEPS_CAPTION = (
    "Time of a step: in colour without communication, on top what communication adds (exposed), with its interval over "
    "turns. Medians by the host clock, of the slowest rank."
)
TIMELINE_CAPTION = (
    "One traced step of rank 0 by implementation: when it computes and when it communicates; below, the phases. Spans "
    "closer than a five-hundredth of the step are drawn as one, so that bars cover gaps: how long the rank computes "
    "stands in each panel. On a GPU the kernels of the two streams, on a CPU operators and the collectives of gloo's "
    "threads."
)
BUCKETS_CAPTION = (
    "Exposed communication over the number of buckets, with intervals over turns, and the fitted model; most buckets: "
    "each gradient by itself."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Check, benchmark, phases, comparison, timeline, buckets, model, published figures; the timeline's spans."""
    of = rows.by_variant(records["ddp"])
    lines = alone.lines(records.get("all_reduce", []))
    buckets, phased = rows.of_implementations(of, v.BUCKETED), rows.of_implementations(of, *v.PHASED)
    return [
        t.make(TABLES[0], "Ranks against a single process", of, columns.checked(), [CHECK_NOTE]),
        t.make(TABLES[1], "Step and communication", of, columns.benchmark(), [STEP_NOTE, COMMUNICATION_NOTE]),
        t.make(TABLES[2], "Phases of a step", phased, columns.phases(lines), [PHASES_NOTE]),
        t.make(TABLES[3], "Against naive and against PyTorch's", of, columns.compared(), [COMPARED_NOTE]),
        t.make(TABLES[4], "Traced steps", rows.traced(of), columns.timeline(), [TIMELINE_NOTE]),
        t.make(
            TABLES[5], "Step by bucket size", counts.compared(buckets), columns.bucketed(), [STEP_NOTE, COUNTS_NOTE]
        ),
        t.make(TABLES[6], "The model of the overhead", overhead.points(of), columns.overhead(), [OVERHEAD_NOTE]),
        t.make(TABLES[7], "Beside published figures", of, columns.beside(), [PUBLISHED_NOTE]),
        t.make(TABLES[8], "Spans of the traced steps", rows.spans(of), columns.spans()),
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """The homework's questions in its order, then PyTorch's and published figures."""
    check, benchmark, phases, compared, timeline, buckets, model = (tables[name].ok for name in TABLES[:7])
    return [
        find("cs336.ddp_check", TABLES[:1], lambda: answers.check(check)),
        find("cs336.ddp_naive", (*TABLES[1:3], TABLES[4]), lambda: answers.naive(benchmark, phases, timeline)),
        find("cs336.ddp_flat", TABLES[1:4], lambda: answers.flat(benchmark, phases, compared)),
        find("cs336.ddp_overlap", TABLES[1:4:2], lambda: answers.overlap(benchmark, compared)),
        find("cs336.ddp_timeline", TABLES[4:5], lambda: answers.timeline(timeline)),
        find("cs336.ddp_bucketed", TABLES[5:6], lambda: answers.bucketed(buckets)),
        find("cs336.ddp_overhead", TABLES[6:7], lambda: answers.model(model)),
        find("cs336.ddp_torch", TABLES[3:4], lambda: answers.torch_ddp(compared)),
        find("cs336.ddp_published", TABLES[1:4:2], lambda: answers.published(benchmark, compared)),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Steps by implementation, timelines, exposed communication by number of buckets."""
    benchmark, compared = tables[TABLES[1]].ok, tables[TABLES[3]].ok
    steps = partial(drawings.steps, rows=benchmark, without=compared)
    timelines = partial(drawings.timelines, rows=tables[TABLES[8]].ok, traced=tables[TABLES[4]].ok)
    buckets = partial(drawings.buckets, rows=tables[TABLES[6]].ok)
    return [
        f.Figure(FIGURES[0], STEPS_CAPTION, steps, (7.0, 4.2), sample="step_ms"),
        f.Figure(FIGURES[1], TIMELINE_CAPTION, timelines, (7.0, 5.2)),
        f.Figure(FIGURES[2], BUCKETS_CAPTION, buckets, (7.0, 3.6)),
    ]
