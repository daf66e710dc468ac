"""Columns of ddp's tables."""

from __future__ import annotations

from typing import Any

from perfscribe import tables as t
from perfscribe.counters.traffic import busbw_gb_per_s
from perfscribe.experiments.ddp import alone, published
from perfscribe.experiments.ddp import variants as v
from perfscribe.records import Record
from perfscribe.tables import GIB, MIB

TORCH_OWN = "PyTorch's own"
HOST_THREADS = "threads of the host"
CELL = (
    t.factor("size", "Size"),
    t.factor("seq_len", "Context"),
    t.factor("batch", "Global batch"),
    t.factor("world_size", "Processes"),
    t.factor("backend", "Backend"),
    t.factor("dtype", "Dtype"),
)
IMPLEMENTATION = t.factor("implementation", "Implementation")
BUCKET = t.factor("bucket_mb", "Bucket (MB)")
EVERY = [*CELL, IMPLEMENTATION, BUCKET]


def _spread(name: str, title: str, spread: str) -> t.Column:
    """A value rounded by another one."""
    return t.Column(
        name, title, lambda r: r.values[name], spread=f"{name}_spread", spread_get=lambda r: r.values[spread]
    )


def _unshown(name: str) -> t.Column:
    """A value for the CSV and the figures alone."""
    return t.Column(name, name, lambda record: record.values[name], kind="unshown")


def _counted(name: str, title: str, instead: str = TORCH_OWN, scale: float = 1.0) -> t.Column:
    """A count; a text where PyTorch's implementation does not tell it."""

    def get(record: Record) -> Any:
        if not record.ok:
            return None
        found = record.values.get(name)
        return instead if found is None else found * scale if scale != 1 else found

    return t.derived(name, title, get, exact=scale == 1)


def benchmark() -> list[t.Column]:
    """A step and its communication, as the homework asks for them."""
    return [
        *EVERY,
        t.median("step_ms", "Step (ms)"),
        t.iqr("step_ms", "IQR (ms)"),
        _spread("spent_ms", "Communicating (ms)", "spent_spread"),
        t.value("spent_how", "Communication is", exact=True),
        t.value("spent_of_ms", "Of a step of (ms)"),
        _spread("spent_percent", "Share of that (%)", "spent_percent_spread"),
        _spread("exposed_ms", "Exposed (ms)", "exposed_spread"),
        t.value("exposed_interval", "Interval (ms)", exact=True),
        *(_unshown(f"exposed_{end}_ms") for end in ("low", "high")),
        _spread("exposed_percent_of_naive", "Exposed, of naive's (%)", "exposed_percent_of_naive_spread"),
        _spread("exposed_percent_of_naive_high", "Upper end (%)", "exposed_percent_of_naive_spread"),
        _counted("all_reduces", "All-reduces"),
        t.value("turns", "Turns", exact=True),
        t.count("step_ms"),
        t.timer("step_ms"),
    ]


def phases(lines: alone.Lines) -> list[t.Column]:
    """Where a step goes, of implementations whose phases are timed. lines: of all-reduces by themselves."""
    parts = ("forward", "backward", "communication", "optimizer")
    titles = {"communication": "After backward, communication"}
    timed = [t.median(f"{part}_ms", f"{titles.get(part, part.capitalize())} (ms)") for part in parts]
    return [
        *CELL,
        IMPLEMENTATION,
        *timed,
        t.iqr("communication_ms", "IQR (ms)"),
        t.derived("copies_ms", "Copies of it (ms)", _copies),
        t.Column("bus_gb_per_s", "Rate of it (bus GB/s)", _rate, spread="bus_gb_per_s_spread", spread_get=_rate_spread),
        t.derived("alone_ms", "All-reduces by themselves (ms)", lambda record: alone.time_ms(record, lines)),
        t.median("marked_step_ms", "Step, waiting for each phase (ms)"),
        t.value("sent_bytes", "Sent (MiB)", 1 / MIB, "sent_mib"),
        *(_unshown(f"communication_{name}") for name in ("ratio", "ratio_spread", "interval", "verdict")),  # to naive's
        t.count("communication_ms"),
    ]


def _copies(record: Record) -> float | str | None:
    if not record.ok:
        return None
    return t.summary(record, "copies_ms").median if "copies_ms" in record.samples else "none"


def _rate(record: Record) -> float | str | None:
    """Of communication that happens apart from everything else."""
    if not record.ok:
        return None
    if record.factors["implementation"] not in v.AFTER_BACKWARD:
        return "overlaps backward"
    spent_ms = _sending_ms(record)
    if spent_ms <= 0:
        return "below the timer's noise"
    return busbw_gb_per_s("all_reduce", record.factors["world_size"], int(record.values["sent_bytes"]), spent_ms)


def _sending_ms(record: Record) -> float:
    """Communication without the copies into a flat tensor and back."""
    copies_ms = t.summary(record, "copies_ms").median if "copies_ms" in record.samples else 0.0
    return t.summary(record, "communication_ms").median - copies_ms


def _rate_spread(record: Record) -> float | str | None:
    """As far, relatively, as communication spreads."""
    rate = _rate(record)
    if not isinstance(rate, float):
        return rate
    times = t.summary(record, "communication_ms")
    return rate * times.iqr / _sending_ms(record) if times.n > 1 else t.ONE_SAMPLE


def compared() -> list[t.Column]:
    """Each implementation against naive and against PyTorch's, turn by turn, and its peak memory."""
    named: list[t.Column] = []
    for name, whose in (("naive", "naive's"), ("torch", "PyTorch's")):
        named += [
            _spread(f"{name}_ratio", f"Step over {whose} (×)", f"{name}_ratio_spread"),
            t.value(f"{name}_interval", "95 % interval", exact=True),
            t.value(f"{name}_verdict", "It is", exact=True),
            *(_unshown(f"{name}_{end}") for end in ("low", "high")),
        ]
    return [
        *EVERY,
        *named,
        t.median("off_ms", "Step without communication (ms)"),
        _counted("peak_bytes", "Peak (GiB)", "not counted on a CPU", 1 / GIB),
        t.value("turns", "Turns", exact=True),
        t.count("step_ms"),
    ]


def bucketed() -> list[t.Column]:
    """The homework's table of bucket sizes."""
    return [
        *CELL,
        BUCKET,
        t.value("buckets", "Buckets", exact=True),
        published.column("note-h100-pair", "bucket_count", "Buckets, a note on 2 x H100"),
        t.median("step_ms", "Step (ms)"),
        t.iqr("step_ms", "IQR (ms)"),
        *(one for one in published.columns("step_ms") if one.name.endswith("brandon-snider")),
        _spread("exposed_ms", "Exposed (ms)", "exposed_spread"),
        t.value("exposed_interval", "Interval (ms)", exact=True),
        *(_unshown(f"exposed_{end}_ms") for end in ("low", "high")),
        _spread("least_ratio", "Step over the least's (×)", "least_ratio_spread"),
        t.value("least_interval", "95 % interval", exact=True),
        t.value("least_verdict", "It is", exact=True),
        t.value("turns", "Turns", exact=True),
        t.count("step_ms"),
    ]


def overhead() -> list[t.Column]:
    """The model's points and what it says."""
    return [
        *CELL,
        IMPLEMENTATION,
        BUCKET,
        t.value("bucket_count", "n_b", exact=True),
        _spread("exposed_ms", "Exposed (ms)", "exposed_spread"),
        *(_unshown(f"exposed_{end}_ms") for end in ("low", "high")),
        _like_exposed("model_ms", "Model (ms)"),
        _like_exposed("residual_ms", "Measured less model (ms)"),
        t.value("gradient_bytes", "s (MB)", 1e-6, "gradient_mb"),
        t.value("bandwidth", "w (GB/s)"),
        t.value("call_us", "o (µs)"),
        t.value("best_buckets", "Best n_b, predicted"),
        t.value("best_bucket_mb", "Best bucket, predicted (MB)"),
        t.value("found_bucket", "Least exposed, found", exact=True),
    ]


def _like_exposed(name: str, title: str) -> t.Column:
    """A value that is compared with exposed communication, and rounded as that is."""
    return t.Column(name, title, lambda record: record.values[name], spread="exposed_ms_spread")


def beside() -> list[t.Column]:
    """Our step and communication beside published ones."""
    ours = {
        "step_ms": t.median("step_ms", "Step (ms)"),
        "communication_ms": _spread("spent_ms", "Communicating (ms)", "spent_spread"),
    }
    return [*EVERY, *(column for metric, own in ours.items() for column in (own, *published.columns(metric)))]


def checked() -> list[t.Column]:
    """How far the parameters of ranks are from a single process's."""
    return [
        *EVERY,
        t.value("error", "Largest relative error"),
        t.derived("allowed", "Allowed", lambda r: v.TOLERANCE[r.factors["dtype"]] if r.ok else None, exact=True),
        t.value("parameter_tensors", "Parameter tensors of the timed model", exact=True),
    ]


def timeline() -> list[t.Column]:
    """A traced step in figures."""

    def hidden(record: Record) -> float:
        return 100 * float(record.values["traced_both_ms"]) / float(record.values["traced_communication_ms"])

    return [
        *EVERY,
        t.value("traced_step_ms", "Traced step (ms)"),
        t.value("traced_compute_ms", "Computing (ms)"),
        t.value("traced_communication_ms", "Communicating (ms)"),
        t.value("traced_both_ms", "Both at once (ms)"),
        t.derived("hidden_percent", "Communication beside compute (%)", hidden),
        t.derived("streams", "Streams", _streams, exact=True),
        t.value("trace_tool", "Traced by", exact=True),
    ]


def _streams(record: Record) -> str | None:
    if not record.ok:
        return None
    if record.factors["device"] != "cuda":
        return HOST_THREADS
    return "one for each" if record.values["own_stream"] else "shared"


def spans() -> list[t.Column]:
    """Every bar of the picture."""
    return [
        *EVERY,
        t.factor("lane", "Lane"),
        t.factor("span", "Span"),
        t.value("start_ms", "Start (ms)"),
        t.value("duration_ms", "Duration (ms)"),
        t.value("step_ms", "Step (ms)"),
    ]
