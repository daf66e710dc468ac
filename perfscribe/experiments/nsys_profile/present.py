"""Tables, figures and answers of nsys_profile."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.nsys_profile import answers, columns, details, drawings, kernel_columns
from perfscribe.experiments.nsys_profile.attention_columns import attention as attention_columns
from perfscribe.findings import Finding, find
from perfscribe.profiling.families import FAMILIES
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = (
    "cs336.nsys_forward",
    "cs336.nsys_top_kernels",
    "cs336.nsys_other_kernels",
    "cs336.nsys_matmul_share",
    "cs336.nsys_attention",
    "cs336.nsys_families",
    "cs336.nsys_nvtx_kernels",
    "cs336.nsys_timeline_spans",
    "cs336.nsys_timeline_bins",
)
FIGURES = ("cs336.nsys_forward", "cs336.nsys_families", "cs336.nsys_timeline")
PASSES = ("forward", "backward", "full step")
FORWARD_NOTES = [
    "Forward of a training step, its graph kept, to the loss. A range closes once the device is done, so that it holds "
    "all work launched in it; a kernel belongs to the range in which it was launched. Busy, idle and ends are those "
    "of the traced pass of median length. Waiting for a launch: idle time before kernels whose launch was not over "
    "when the device ran dry. Host clock, traced: of the very passes that the ranges are of. brandon-snider traced "
    "H100s.",
    "On a CPU, operators of PyTorch stand in for kernels: idle is what passes between two operators.",
]
KERNELS_NOTE = (
    "Share: of the kernel time of the pass; launches: on average over the traced passes. Names are shortened to what "
    "tells kernels apart. Every range with its kernels: `cs336.nsys_nvtx_kernels.csv`, complete for the cells that the "
    "config calls detailed, else the largest kernels of each phase. The report of nsys itself stays where it "
    "was measured, in `results/<site>/nsys/`; `./run results/<site>/nsys/NAME.kernels.csv` summarises it as "
    "`nsys stats -r nvtx_kern_sum` does."
)
FAMILY_NOTE = (
    "Share of the pass's kernel time. Kernels that together take the last part of a range's time are kept as a sum by "
    "records that are not detailed; they count as other, and a family of which no kernel was kept has 0."
)
NAMES_NOTE = "A name that several kernels share once shortened ends in # and the start of a digest of the full one."
ATTENTION_NOTE = (
    "Means over layers and traced passes, forward of a training step. FLOP: 2·B·H·S²·C a product, causal masking "
    "saving none; 5 an element for softmax (maximum, subtraction, exponential, sum, division). Its least traffic: each "
    "element read and written once."
)
TIMELINE_CAPTION = (
    "One training step (of median length). Above: its ranges by the host clock. Middle: share of each 120th of the "
    "step in which the device ran kernels, by family; white is idle. Below: the kernels of one layer of the forward "
    "pass, one lane a family, and where the kernels of the attention ranges ran; gaps are idle time."
)
FORWARD_CAPTION = (
    "Where the range of the forward pass goes, in the traced pass of median length, its milliseconds above; marked the "
    "median time of the same pass by the host clock, without a profiler."
)
FAMILIES_CAPTION = "Kernel time by family, share of all kernels of the pass, summed over the traced passes."


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The answers' tables, every range with its kernels, and the timeline."""
    cells = records["nsys_profile"]
    kernels, spans, bins = details.kernel_rows(cells), details.phase_rows(cells), details.bin_rows(cells, FAMILIES)
    return [
        t.make(TABLES[0], "Forward by its range and by the host clock", cells, columns.forward_time(), FORWARD_NOTES),
        t.make(TABLES[1], "Kernels with most time", cells, kernel_columns.top_kernels(), [KERNELS_NOTE, NAMES_NOTE]),
        t.make(TABLES[2], "Forward besides matrix products", cells, kernel_columns.other_kernels(), [NAMES_NOTE]),
        t.make(TABLES[3], "Share of matrix products in kernel time", cells, columns.matmul_share()),
        t.make(TABLES[4], "Softmax and the attention products", cells, attention_columns(), [ATTENTION_NOTE]),
        t.make(
            TABLES[5],
            "Kernel time by family",
            details.by_pass(cells, PASSES),
            kernel_columns.family_shares(FAMILIES),
            [FAMILY_NOTE],
        ),
        t.make(TABLES[6], "Ranges and their kernels", kernels, details.kernel_columns()),
        t.make(TABLES[7], "Timeline: ranges, and the kernels of one layer", spans, details.span_columns()),
        t.make(TABLES[8], "Timeline: device time by family", bins, details.bin_columns(FAMILIES)),
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """The answers to questions (a) to (e), by kernel and by family, and who traced."""
    forward, top, others, matmul, attention, families = (tables[name].ok for name in TABLES[:6])
    return [
        find("cs336.nsys_tool", TABLES[:1], lambda: answers.tools(forward)),
        find("cs336.nsys_forward", TABLES[:1], lambda: answers.forward(forward)),
        find("cs336.nsys_top_kernel", TABLES[1:2], lambda: answers.top_kernel(top)),
        find("cs336.nsys_families", TABLES[5:6], lambda: answers.families(families, FAMILIES)),
        find("cs336.nsys_other_kernels", TABLES[2:3], lambda: answers.other_kernels(others)),
        find("cs336.nsys_matmul_share", TABLES[3:4], lambda: answers.matmul_share(matmul)),
        find("cs336.nsys_softmax", TABLES[4:5], lambda: answers.softmax(attention)),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Where forward's time goes, families by pass, the timeline of one step."""
    forward, families = tables[TABLES[0]], tables[TABLES[5]]
    spans, bins = tables[TABLES[7]], tables[TABLES[8]]
    draw_families = partial(drawings.draw_families, table=families, families=FAMILIES, passes=("forward", "full step"))
    draw_timeline = partial(drawings.draw_timeline, spans=spans, bins=bins, families=FAMILIES)
    return [
        f.Figure(FIGURES[0], FORWARD_CAPTION, partial(drawings.draw_forward, table=forward), sample="forward_range_ms"),
        f.Figure(FIGURES[1], FAMILIES_CAPTION, draw_families, (7.0, 4.8), sample="forward_range_ms"),
        f.Figure(FIGURES[2], TIMELINE_CAPTION, draw_timeline, (7.0, 4.8), sample="full_step_traced_ms"),
    ]
