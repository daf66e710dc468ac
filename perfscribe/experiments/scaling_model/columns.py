"""Columns and notes of the scaling tables."""

from __future__ import annotations

from dataclasses import replace

from perfscribe import tables as t
from perfscribe.experiments.scaling_model.model import HOLDS
from perfscribe.scaling.collectives import JUDGED_FROM, RING, TREE
from perfscribe.scaling.reach import FACTOR, MOST_RANKS
from perfscribe.scaling.steps import BAND_FROM

STEP_NOTE = (
    "Step = computing + communicating - overlap x the shorter of both; overlap, from 0 to 100 %, is the one free "
    "parameter, fitted by relative errors to the measured steps that communicate. Residual: measured / modelled - 1."
)
FSDP_NOTE = (
    "FSDP: computing is the step of fewest ranks less what that communicates, as if nothing of it were hidden, so that "
    "a fitted overlap leaves that step a residual where it communicates; it grows with a rank's FLOP. Each unit "
    "is gathered for forward and, but for the root, again for backward, its gradients are reduced and scattered: "
    "(n - 1)/n of the bytes each."
)
DDP_NOTE = (
    "All-reduce: computing is the step without communication, a fixed part and one that is divided among ranks, by "
    "least squares; 2(n - 1)/n of the gradients' bytes in as many calls as were counted. One count cannot tell the "
    "parts apart: then all of it is divided."
)
LEFT_OUT_NOTE = (
    "Largest count left out: every term and the overlap are fitted again to smaller counts alone, collectives "
    "included, and that step predicted: measured / predicted - 1; one smaller count cannot tell which part of an "
    "all-reduce's computing is divided. Serial: Karp and Flatt's fraction of strong scaling, "
    "Gustafson's of weak, of the steps of fewest and of most ranks, where it is between 0 and 100 %. The model holds "
    f"where residuals and the largest count left out stay within {100 * HOLDS:.0f} %."
)
PREDICTED_NOTE = (
    "Strong: the same batch on all ranks; weak: the same rows on each. Step, samples/s and residual are of the kind "
    "that was measured, weak and strong efficiency are the model's against one rank by the model; the measured one is "
    "that of measured steps against the one of fewest ranks. Strong scaling of what was "
    f"measured weak: the batch of {MOST_RANKS:,} ranks, accumulated by fewer. By the textbook: Amdahl's law (strong) "
    "or Gustafson's (weak) with the serial fraction of the largest measured count, which knows no communication. "
    "Where the terms miss the measured steps, rows that were not measured have no figure of the model's. The "
    "workshop's own tables predict otherwise: from the step on most ranks of one node, what the host adds included, "
    "without overlap, with collectives as they were measured among as many ranks, not as one latency of a hop and one "
    "bandwidth give them. So the two differ."
)
LINKS_NOTE = (
    "Links assumed as here: beyond the ranks among which this machine's collectives were measured, and without a "
    "measured network, its links are taken on. That is the least that more ranks can cost: a network between nodes is "
    "slower and its latency longer, so that times are lower bounds and efficiencies upper ones. Measured network: its "
    "bandwidth by communication_nodes, latency as within this machine."
)
REACH_NOTE = (
    f"Model only: beyond {FACTOR} times the largest measured count. Band: of 95 %, from {BAND_FROM} fitted points on. "
    f"{LINKS_NOTE}"
)
HOPS_NOTE = (
    "Time = hops x latency of a hop + bytes of a rank / bandwidth, by least squares of relative errors over all sizes "
    "and counts at once. Hops of a gather or a reduce-scatter: ring n - 1, tree (recursive doubling and halving) log2 "
    "n, rounded up; an all-reduce takes twice as many. Assumed is the algorithm with the smaller root mean square of "
    f"residuals, where {JUDGED_FROM} numbers of ranks or more were measured. Fewer do not judge, as a ring looks like "
    "a tree where a part of its latency does not grow: then it is what NCCL's log says, or else the ring, which grows "
    "faster."
)
SIZES_NOTE = (
    f"Time and bus bandwidth are measured where the origin says so. Model only: beyond {FACTOR} times the largest "
    "measured count, or as many times the largest measured message. An MB is what it is in the table of all-reduces."
)


def place() -> list[t.Column]:
    """Which training."""
    return [t.factor("training", "Training"), t.factor("exchange", "Exchange"), t.factor("scaling", "Measured scaling")]


def terms() -> list[t.Column]:
    """What was fitted."""
    return [
        *place(),
        t.value("counts", "Measured counts", exact=True),
        t.value("compute_ms", "Computing, most ranks (ms)"),
        t.value("fixed_ms", "Of it not divided (ms)"),
        t.value("communication_ms", "Communicating, most ranks (ms)"),
        t.value("latency_ms", "Of it latency (ms)"),
        t.value("overlap_percent", "Overlap (%)"),
        replace(t.value("asked_percent", "Overlap without limits (%)"), kind="unshown"),  # no share: it tells a sign
        t.value("points", "Points", exact=True),
        t.value("worst_percent", "Largest residual (%)"),
        t.value("left_out_percent", "Largest count left out (%)"),
        t.value("serial_percent", "Serial (%)"),
        t.value("holds", "Model holds", exact=True),
    ]


def predicted() -> list[t.Column]:
    """A row a number of ranks."""
    return [
        *place(),
        t.factor("ranks", "Ranks"),
        t.factor("origin", "Origin"),
        t.factor("reach", "Reach"),
        t.value("step_ms", "Step (ms)"),
        t.value("model_ms", "By the model (ms)"),
        t.value("residual_percent", "Residual (%)"),
        t.value("band", "Band (ms)", exact=True),
        t.value("samples_per_s", "Samples/s"),
        t.value("compute_ms", "Computing (ms)"),
        t.value("exposed_ms", "Exposed communication (ms)"),
        t.value("limit", "Longest", exact=True),
        t.value("weak_percent", "Weak efficiency (%)"),
        t.value("strong_percent", "Strong efficiency (%)"),
        t.value("measured_percent", "Measured efficiency (%)"),
        t.value("textbook_percent", "By the textbook (%)"),
        t.value("links", "Links", exact=True),
        t.value("holds", "Model holds", exact=True),
    ]


def fitted() -> list[t.Column]:
    """A row a backend and collective."""
    return [
        t.factor("operation", "Operation"),
        t.factor("backend", "Backend"),
        t.value("counts", "Measured counts", exact=True),
        t.value("points", "Points", exact=True),
        t.value("chosen", "Assumed", exact=True),
        t.value("bus_gb_per_s", "Bandwidth, as busbw (GB/s)"),
        t.value("worst_percent", "Largest residual (%)"),
        *(column for name in (RING, TREE) for column in _by_algorithm(name)),
        t.value("logged", "NCCL's log says", exact=True),
    ]


def _by_algorithm(name: str) -> list[t.Column]:
    title = name.capitalize()
    return [
        t.value(f"{name}_hop_us", f"{title}: latency of a hop (µs)"),
        t.value(f"{name}_percent", f"{title}: residuals, rms (%)"),
        t.value(f"{name}_left_out_percent", f"{title}: largest count left out, rms (%)"),
    ]


def over_ranks() -> list[t.Column]:
    """A row a message and number of ranks."""
    return [
        t.factor("backend", "Backend"),
        t.factor("size_mb", "Message (MB)"),
        t.factor("ranks", "Ranks"),
        t.factor("origin", "Origin"),
        t.factor("reach", "Reach"),
        t.value("time_ms", "Time (ms)"),
        t.value("model_ms", "By the model (ms)"),
        t.value("residual_percent", "Residual (%)"),
        t.value("busbw_gb_per_s", "Bus bandwidth (GB/s)"),
        t.value("latency_percent", "Of the model latency (%)"),
        t.value(f"{RING}_ms", "By a ring (ms)"),
        t.value(f"{TREE}_ms", "By a tree (ms)"),
        t.value("links", "Links", exact=True),
    ]
