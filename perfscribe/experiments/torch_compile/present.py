"""Tables, file, figures and answers of torch_compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.torch_compile import answers, drawings, published, ratios
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import GIB, Table

TABLES = (
    "cs336.compiled_attention",
    "cs336.compiled_attention_speedup",
    "cs336.compiled_attention_published",
    "cs336.compiled_models",
    "cs336.compiled_models_speedup",
    "cs336.compiled_models_published",
    "cs336.compile_cost",
)
FIGURES = ("cs336.compiled_speedups",)
FILES = ("compiled_attention_benchmark.csv",)

TIMER_NOTE = (
    "Host clock, the device synchronised before and after each phase. Each cell is a shape: eager, compiled and eager "
    "again take turns in one process, in an order that is reversed from turn to turn; the first pass of a turn is not "
    "counted. cuda_graphs: inductor's mode reduce-overhead, which copies inputs into buffers of its own."
)
SPEEDUP_NOTE = (
    "Speed-up: eager over compiled, medians of the turns' medians; above 1 compiled takes less time. Interval: "
    "bootstrap over turns within this process. Compiled is faster or slower where the interval excludes 1 and the "
    "effect exceeds that of eager against eager in the same turns of the same pass, which stands before each verdict."
)
ATTENTION_PUBLISHED_NOTE = (
    "002: hardware not stated. brandon-snider and yyin-dev: H100. Theirs are means over passes in a row, ours medians "
    "over passes in turns."
)
MODEL_PUBLISHED_NOTE = (
    "002: hardware, context and dtype are not stated, so that its figures stand at every context and dtype of a size. "
    "brandon-snider: H100, true fp32. yyin-dev: H100, batch not stated."
)
STEP_NOTE = (
    "Forward keeps its graph and ends with the loss; the loss and the optimizer (AdamW) are not compiled. A full step "
    "is forward, backward and optimizer."
)
COST_NOTE = (
    "Compile: the first three passes (the first compiles, with CUDA graphs the second records) less three steady ones, "
    "from empty caches on disk and in memory, so a user whose caches are filled waits less. What a process pays once "
    "for its first compilation, of one addition, is not in it but beside it; with isolation: job the cells of a "
    "process share it. Pays after: passes until the time that was saved makes up for compiling. Recompiles: times that "
    "the same function was compiled again. Memory is counted in one pass of its own."
)


# Variants and phases in the order in which write-ups give them.
SHOWN = {
    "attention": (("eager", "forward"), ("eager", "backward"), ("compiled", "forward"), ("compiled", "backward")),
    "model": tuple(
        (variant, phase)
        for phase in ("forward", "full_step", "backward", "optimizer")
        for variant in published.VARIANTS
    ),
}
HOW = (t.factor("backend", "Backend"), t.factor("implementation", "Implementation"))
WHERE = (t.factor("batch", "Batch"), t.factor("dtype", "Dtype"), t.factor("device", "Device"))
FACTORS = {
    "attention": (t.factor("seq_len", "Sequence length"), t.factor("head_dim", "d_model"), *WHERE, *HOW),
    "model": (t.factor("size", "Size"), t.factor("seq_len", "Context"), *WHERE, *HOW),
}


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Attention and models: times as write-ups give them, speed-ups, published times; and what compiling costs."""
    attention, models = (ratios.cells_of(records["torch_compile"], problem) for problem in ("attention", "model"))
    return [
        *_of_problem("attention", "Attention", attention, TABLES[:3], [TIMER_NOTE], ATTENTION_PUBLISHED_NOTE),
        *_of_problem("model", "Whole models", models, TABLES[3:6], [TIMER_NOTE, STEP_NOTE], MODEL_PUBLISHED_NOTE),
        t.make(TABLES[6], "What compiling costs", [*attention, *models], _cost_columns(), [COST_NOTE]),
    ]


def _of_problem(
    problem: str, name: str, cells: list[Record], ids: Sequence[str], notes: list[str], published_note: str
) -> list[Table]:
    """Times, speed-ups and published times of one problem."""
    factors = FACTORS[problem]
    without_graphs = [record for record in cells if record.factors["implementation"] == "compiled"]
    beside = published.columns(problem)
    speedups = ratios.speedup_columns(problem)
    return [
        t.make(ids[0], f"{name}, eager and compiled", cells, [*factors, *_time_columns(problem)], notes),
        t.make(ids[1], f"{name}: speed-up by compiling", cells, [*factors, *speedups], [SPEEDUP_NOTE]),
        t.make(ids[2], f"{name} beside published figures", without_graphs, [*factors, *beside], [published_note]),
    ]


def _time_columns(problem: str) -> list[t.Column]:
    columns: list[t.Column] = []
    for variant, phase in SHOWN[problem]:
        name = f"{variant}_{phase}_ms"
        title = f"{variant.capitalize()}, {ratios.TITLES[phase].lower()} (ms)"
        columns += [t.median(name, title), t.iqr(name, "IQR (ms)")]
    return [*columns, t.count("compiled_forward_ms"), t.timer("compiled_forward_ms")]


def _cost_columns() -> list[t.Column]:
    return [
        t.Column("compiled", "Compiled", ratios.what, kind="factor", exact=True),
        t.factor("seq_len", "Length"),
        *WHERE[1:],
        *HOW,
        t.value("compile_s", "Compile (s)"),
        t.value("compiler_start_s", "Once a process (s)"),
        t.value("pays_after", "Pays after (passes)"),
        t.value("graphs", "Graphs", exact=True),
        t.value("graph_breaks", "Graph breaks", exact=True),
        t.value("recompiles", "Recompiles", exact=True),
        t.value("peak_eager_bytes", "Peak, eager (GiB)", 1 / GIB, "peak_eager_gib"),
        t.derived("peak_compiled_gib", "Peak, compiled (GiB)", ratios.compiled_peak_gib),
        t.derived("reserved_eager_gib", "Reserved, eager (GiB)", ratios.reserved_gib("eager")),
        t.derived("reserved_compiled_gib", "Reserved, compiled (GiB)", ratios.reserved_gib("compiled")),
    ]


def files(tables: Mapping[str, Table]) -> dict[str, str]:
    """The attention grid in the shape of a write-up's own file."""
    return {FILES[0]: published.benchmark_file(tables[TABLES[0]].frame)}


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Whether compiling helps attention and whole models, what it costs, and whether write-ups agree."""
    ok = {name: table.ok for name, table in tables.items()}
    attention, models, cost = ok[TABLES[1]], ok[TABLES[4]], ok[TABLES[6]]
    speedups = (TABLES[1], TABLES[4])
    return [
        find("cs336.compile_attention", TABLES[1:2], lambda: answers.attention(attention)),
        find("cs336.compile_models", TABLES[3:5], lambda: answers.models(models, ok[TABLES[3]])),
        find("cs336.compile_trend", TABLES[4:5], lambda: answers.trend(models)),
        find("cs336.compile_cuda_graphs", speedups, lambda: answers.cuda_graphs(attention, models)),
        find("cs336.compile_cost", TABLES[6:], lambda: answers.cost(cost)),
        find(
            "cs336.compile_published", (TABLES[2], TABLES[5]), lambda: answers.published(ok[TABLES[2]], ok[TABLES[5]])
        ),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Speed-ups of attention over sequence length, and of whole models by size."""
    intervals = "Points are medians over turns, bars the bootstrap intervals over turns; the dashed line is eager."
    caption = (
        "Speed-up by compiling. Above: attention over sequence length, forward and backward. Below: whole models, "
        f"forward pass and full training step. {intervals}"
    )
    draw = f.stacked(
        partial(drawings.attention, table=tables[TABLES[1]].frame), partial(drawings.models, rows=tables[TABLES[4]].ok)
    )
    return [f.Figure(FIGURES[0], caption, draw, (7.0, 7.0), sample="compiled_forward_ms")]
