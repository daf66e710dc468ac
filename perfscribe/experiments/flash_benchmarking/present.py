"""Tables, figures and answers of flash_benchmarking."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.attention.backends import IMPLEMENTATIONS
from perfscribe.experiments.flash_benchmarking import answers, claims, columns, drawings, leaderboard, limits
from perfscribe.experiments.flash_benchmarking import joining as j
from perfscribe.experiments.flash_benchmarking import rates as r
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = (
    "cs336.flash_benchmarking",
    "cs336.flash_implementations",
    "cs336.flash_rates",
    "cs336.flash_matmul",
    "cs336.flash_leaderboard",
    "cs336.flash_published",
    "cs336.flash_cells",
)
FIGURES = (
    "cs336.flash_times",
    "cs336.flash_pass_rates",
)
EXPERIMENT = "flash_benchmarking"
WIDTH_IN, HEIGHT_IN = 9.0, 4.0  # of one row of panels

TIMED = (
    "Medians. On a CUDA device by replay of CUDA graphs, without launches by the host, L2 flushed before each replay; "
    "with launches by events around plain calls, as do_bench has it. On a CPU by the host clock. One causal problem of "
    "batch 1 and one head; backward alone runs again and again over one forward pass; masks are made beforehand. Each "
    "cell was compared with float64 first. Every cell, with spreads, counts, kernels and "
    "compile time: cs336.flash_cells.csv beside this table's CSV."
)
OURS = (
    "Ours: Triton on a CUDA device, tiles in PyTorch on a CPU. tf32: fp32 with TF32 products. In fp32 PyTorch "
    "multiplies in fp32, as do the tiles and Triton with IEEE products; plain Triton multiplies as three TF32 products."
)
RATES = (
    "Forward 4·N²·d FLOP, halved as causal; backward 2.5 times forward (the convention of the FlashAttention papers), "
    "for every implementation, whatever it runs. Product: the highest rate of a square product of that dtype here. In "
    "fp32 that is no ceiling for Triton's, which multiplies as three TF32 products: a third of TF32's rate would be."
)
PUBLISHED = (
    "Sources and their hardware: references/sources.csv. 002 is a write-up whose hardware is not stated; "
    "brandon-snider and yyin-dev ran on H100. All use do_bench, hence ours with launches; triton is each writer's own "
    "kernel."
)
PRODUCTS = "Random matrices, the product alone, on a CUDA device by replay of CUDA graphs with L2 flushed."


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The homework's table; all implementations; rates; products; the leaderboard; published figures; every cell."""
    cells = records[EXPERIMENT]
    grid, products = j.of_workload(cells, "grid"), j.of_workload(cells, "matmul")
    names = j.shown_implementations(grid)
    rows = j.joined([cell for cell in grid if cell.factors["implementation"] in names])
    refused = j.refusals(grid)
    compared = [cell for cell in grid if cell.factors["implementation"] in ("eager", "tiled", "triton")]
    by_name = columns.by_implementation(names)
    known, peaks = columns.published_figures(EXPERIMENT), r.measured_peaks(products)
    return [
        t.make(
            TABLES[0],
            "FlashAttention-2 against PyTorch",
            [row for row in j.joined(compared) if _is_of_handout(row)],
            columns.handout(),
            [TIMED, OURS, j.VERDICT_NOTE],
        ),
        t.make(TABLES[1], "Implementations of attention", rows, by_name, [j.VERDICT_NOTE, *refused]),
        t.make(TABLES[2], "Rates of attention", rows, r.columns(names, peaks), [RATES, *refused]),
        t.make(TABLES[3], "Rates of a square product", products, r.products(), [PRODUCTS]),
        leaderboard.table(TABLES[4], j.of_workload(cells, "leaderboard")),
        t.make(TABLES[5], "Attention beside published figures", compared, columns.published(known), [TIMED, PUBLISHED]),
        t.make(TABLES[6], "Every cell of attention", grid, columns.every_cell(), [TIMED]),
    ]


def _is_of_handout(row: Record) -> bool:
    """Whether PyTorch or ours was asked for this problem at all, as far as the row says."""
    return not row.ok or any(j.cell_of(row, name) is not None for name in ("eager", j.OURS))


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Who is faster and from which length on; memory; rates; what SDPA took; published claims; the leaderboard."""
    rows, every = tables[TABLES[0]].ok, tables[TABLES[6]].frame
    others, rates, board = (tables[name].ok for name in (TABLES[1], TABLES[2], TABLES[4]))
    names = list(IMPLEMENTATIONS)
    known = columns.published_figures(EXPERIMENT)
    handout, cells = TABLES[:1], TABLES[6:]
    ours = ("triton", "tiled")
    return [
        find("cs336.flash_pytorch", handout, lambda: answers.against_pytorch(rows)),
        find("cs336.flash_crossover", handout, lambda: answers.crossover(rows)),
        find("cs336.flash_sdpa", TABLES[1:2], lambda: answers.against_flash(others, ours)),
        find("cs336.flash_oom", cells, lambda: limits.out_of_memory(every)),
        find("cs336.flash_peak", TABLES[2:4], lambda: limits.share_of_peak(rates, names)),
        find("cs336.flash_launches", handout, lambda: answers.launches(rows)),
        find("cs336.flash_precision", (*handout, *cells), lambda: answers.precision(rows, every)),
        find("cs336.flash_compiled", cells, lambda: answers.sub_grid(every)),
        find("cs336.flash_backends", cells, lambda: limits.sdpa(every)),
        find("cs336.flash_claims", handout, lambda: claims.directions(rows, known, columns.SOURCES)),
        find("cs336.flash_leaderboard", TABLES[4:5], lambda: limits.leaderboard(board)),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Time and rate over length."""
    every, rates = tables[TABLES[6]].frame, tables[TABLES[2]].frame
    timer = "Graph replay with L2 flushed on a CUDA device, host clock on a CPU."
    times = (
        "Median time of a forward and a backward pass over sequence length, one line an implementation; bars around "
        f"the median are as long as the interquartile range. {timer}"
    )
    speeds = (
        "Rate of a forward (above) and a backward pass (below) by the median time, causal products counted half and "
        "backward as 2.5 times forward; dashed: the highest rate of a square product of the same dtype here. "
        f"{timer}"
    )
    dtypes = drawings.dtypes(every)
    by_dtype = f.stacked(*(partial(drawings.times, cells=every, dtype=dtype) for dtype in dtypes))
    by_pass = f.stacked(*(partial(drawings.rates, table=rates, one=one) for one in ("forward", "backward")))
    return [
        f.Figure(FIGURES[0], times, by_dtype, (WIDTH_IN, HEIGHT_IN * len(dtypes)), sample="both_ms"),
        f.Figure(FIGURES[1], speeds, by_pass, (WIDTH_IN, HEIGHT_IN * 2), sample="forward_ms"),
    ]
