"""Columns of the tables of flash_benchmarking."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfscribe import references
from perfscribe import tables as t
from perfscribe.attention import backends
from perfscribe.experiments.flash_benchmarking import joining as j
from perfscribe.records import Record
from perfscribe.tables import Column

PASSES = {"forward": "Forward", "backward": "Backward", "both": "End-to-end"}
SOURCES = {"cs336-writeup-002": "002", "brandon-snider": "brandon-snider", "yyin-dev": "yyin-dev"}
HOST_CLOCK_HOLDS_IT = "in the host clock"


def problem() -> list[Column]:
    """The factors of a problem, as the homework names them."""
    return [
        t.factor("seq_len", "Sequence length"),
        t.factor("head_dim", "d"),
        t.factor("dtype", "Dtype"),
        t.factor("batch", "Batch"),
        t.factor("device", "Device"),
    ]


def handout() -> list[Column]:
    """The homework's table: PyTorch against ours, forward, backward, end-to-end."""
    columns = [*problem(), t.factor(j.OURS, "Ours")]
    for name, title in (("eager", "PyTorch"), (j.OURS, "ours")):
        for one, word in PASSES.items():
            columns.append(j.of_cell(name, t.median(f"{one}_ms", f"{word}, {title} (ms)")))
            columns.append(j.of_cell(name, t.iqr(f"{one}_ms", "IQR (ms)")))
    columns += [
        t.derived("speedup", "PyTorch / ours, end-to-end", j.speedup("eager", j.OURS, "both_ms")),
        t.derived("verdict", "Ours is", j.verdict("eager", j.OURS, "both_ms"), exact=True),
    ]
    columns += [
        j.of_cell(name, _launched("both", f"End-to-end with launches, {title} (ms)"))
        for name, title in (("eager", "PyTorch"), (j.OURS, "ours"))
    ]
    columns.append(t.derived("verdict_launched", "Ours is, with launches", _verdict_launched, exact=True))
    return [*columns, j.of_cell("eager", t.count("both_ms", "n, PyTorch")), j.of_cell(j.OURS, t.count("both_ms", "n"))]


def _verdict_launched(row: Record) -> str:
    sample = "both_launched_ms" if row.factors["device"] == "cuda" else "both_ms"
    return j.verdict("eager", j.OURS, sample)(row)


def by_implementation(names: Sequence[str]) -> list[Column]:
    """Forward and backward of each implementation, and verdicts on ours against SDPA's flash backend."""
    columns = problem()
    for one in ("forward", "backward"):
        columns += [
            j.of_cell(name, t.median(f"{one}_ms", f"{PASSES[one]}, {backends.named(name).title} (ms)"))
            for name in names
        ]
    for one in ("forward", "backward"):
        title = f"Ours against SDPA flash, {one}"
        columns.append(t.derived(f"verdict_{one}", title, j.verdict("sdpa_flash", j.OURS, f"{one}_ms"), exact=True))
    return columns


def every_cell() -> list[Column]:
    """All that a cell gave."""
    columns = [*problem(), t.factor("implementation", "Implementation")]
    for one, word in PASSES.items():
        columns += [t.median(f"{one}_ms", f"{word} (ms)"), t.iqr(f"{one}_ms", "IQR (ms)")]
    columns.append(t.count("both_ms"))
    columns += [_launched(one, f"{word} with launches (ms)") for one, word in PASSES.items()]
    return [
        *columns,
        t.derived("first_call_s", "First calls beyond the second (s)", if_timed(lambda r: r.spent["compile_s"])),
        t.derived("sdpa_backend", "Backend that SDPA took", if_timed(_sdpa_backend), exact=True),
        t.value("largest_relative_error", "Largest error against float64"),
        t.timer("both_ms"),
        _unshown("kernels", "Kernels with most time", "not looked at"),
        _unshown("calls_per_sample", "Calls a sample: forward, backward, both", "1 1 1"),
        _unshown("no_graph", "Why not by graph replay", "none"),
    ]


def if_timed(get: Callable[[Record], Any]) -> Callable[[Record], Any]:
    """The figure of a record with samples; of another one None, in whose place its status is shown."""
    return lambda record: get(record) if record.samples else None


def _unshown(name: str, title: str, otherwise: str) -> Column:
    """A text of the record that stands in the CSV alone."""
    return Column(name, title, if_timed(lambda record: record.values.get(name, otherwise)), kind="unshown", exact=True)


def _sdpa_backend(record: Record) -> str:
    if not backends.named(str(record.factors["implementation"])).sdpa:
        return "not SDPA"
    return str(record.values.get("sdpa_backend", t.NOT_RECORDED))


def _launched(one: str, title: str) -> Column:
    """Median of a pass by plain events, launches included; the host clock of a CPU holds them anyway."""
    plain = t.median(f"{one}_launched_ms", title)

    def told(get: Callable[[Record], Any] | None) -> Callable[[Record], Any]:
        assert get is not None

        return if_timed(lambda record: get(record) if record.factors["device"] == "cuda" else HOST_CLOCK_HOLDS_IT)

    return Column(plain.name, title, told(plain.get), spread=plain.spread, spread_get=told(plain.spread_get))


Known = Mapping[tuple[Any, ...], Any]


def published_figures(experiment: str) -> Known:
    """Published figures by metric, source, length, head dimension, dtype, batch and implementation."""
    found: dict[tuple[Any, ...], Any] = {}
    for reference in references.load(experiment):
        levels = tuple(reference.factors.get(name) for name in COMPARED)
        found[(reference.metric, reference.source, *levels)] = reference.shown
    return found


COMPARED = ("seq_len", "head_dim", "dtype", "batch", "implementation")


def published(known: Known) -> list[Column]:
    """Each pass of one implementation, launches included, beside what was published of it."""
    columns = [*problem(), t.factor("implementation", "Implementation")]
    for one, word in PASSES.items():
        columns.append(_as_published(one, f"{word} (ms)"))
        for source, name in SOURCES.items():
            metric = f"{one if one != 'both' else 'forward_backward'}_ms"
            title = f"{word}, {name} (ms)"
            columns.append(
                Column(f"{metric}_{source}", title, _lookup(known, metric, source), kind="published", exact=True)
            )
    return columns


def _lookup(known: Known, metric: str, source: str) -> Callable[[Record], Any]:
    return lambda r: known.get((metric, source, *(r.factors[name] for name in COMPARED)), "none")


def _as_published(one: str, title: str) -> Column:
    """A pass as the sources time it: by events around plain calls; on a CPU by the host clock."""

    def sample(record: Record) -> str:
        return f"{one}_launched_ms" if record.factors["device"] == "cuda" else f"{one}_ms"

    def spread(record: Record) -> Any:
        found = t.summary(record, sample(record))
        return t.ONE_SAMPLE if found.n == 1 else found.iqr

    name = f"{one}_with_launches_ms"
    return Column(name, title, lambda r: t.summary(r, sample(r)).median, spread=f"{name}_iqr", spread_get=spread)
