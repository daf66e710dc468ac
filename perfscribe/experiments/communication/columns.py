"""Columns of the tables of communication."""

from __future__ import annotations

from perfscribe import tables as t
from perfscribe.experiments.communication import published

CELL = (t.factor("backend", "Backend"), t.factor("implementation", "Averaging"), t.factor("tool", "Tool"))
PLACE = (
    t.factor("placement", "Placement"),
    t.factor("nodes", "Nodes"),
    t.factor("ranks_per_node", "Ranks a node"),
    t.factor("link", "Joined by"),
)


def _middle(name: str, title: str) -> t.Column:
    """A median over turns, rounded by its interquartile range."""
    return t.Column(
        name, title, lambda r: r.values[name], spread=f"{name}_spread", spread_get=lambda r: r.values[f"{name}_spread"]
    )


def _with_spread(name: str, title: str, without: str) -> t.Column:
    """A figure that is printed as finely as its spread allows, where it has one."""
    spread = f"{name}_spread"
    return t.Column(
        name, title, lambda r: r.values[name], spread=spread, spread_get=lambda r: r.values.get(spread, without)
    )


def metrics() -> list[t.Column]:
    """The homework's table."""
    return [
        *CELL,
        t.factor("metric", "Metric"),
        _middle("inter", "inter"),
        _middle("intra", "intra"),
        _with_spread("impact", "Impact (×)", "no interval"),
        t.value("impact_interval", "95 % interval", exact=True),
        t.value("impact_verdict", "Across nodes it is", exact=True),
        t.value("turns", "Turns", exact=True),
        *published.columns(),
    ]


def ranks() -> list[t.Column]:
    """Each rank's own times."""
    return [
        *CELL,
        *PLACE,
        t.factor("rank", "Rank"),
        t.median("total_ms", "Total (ms)"),
        t.iqr("total_ms", "IQR (ms)"),
        t.median("transfer_ms", "Transfer (ms)"),
        t.median("wait_ms", "Waiting (ms)"),
        _with_spread("wait_percent", "Waiting, of the total, over all turns (%)", "one turn"),
        t.value("wait_percent_spread", "IQR of its turns (points)"),
        t.median("slowest_ms", "Slowest call (ms)"),
        published.slowest(),
        t.median("compute_ms", "All else (ms)"),
        t.median("step_ms", "Step (ms)"),
        t.value("calls", "Calls", exact=True),
        t.count("total_ms"),
        t.timer("total_ms"),
    ]


def bandwidth() -> list[t.Column]:
    """Rates, of training and of plain collectives."""
    return [
        t.factor("backend", "Backend"),
        t.factor("what", "What"),
        t.factor("placement", "Placement"),
        t.factor("link", "Joined by"),
        t.value("message_mb", "Mean message (MB)"),
        _with_spread("time_ms", "Mean transfer (ms)", "no time"),
        _with_spread("gb_per_s", "Each way (GB/s)", "no rate"),
        _with_spread("with_waiting_gb_per_s", "Waiting counted (GB/s)", "one figure"),
        t.value("rated_gb_per_s", "Rated, each way (GB/s)"),
        t.value("rated_by", "Rated by"),
        _with_spread("rated_percent", "Of the rated (%)", "no share"),
        *published.rates(),
    ]


def operators() -> list[t.Column]:
    """The head of each rank's key_averages."""
    return [
        *CELL[:2],
        PLACE[0],
        t.factor("rank", "Rank"),
        t.factor("operator", "Operator or kernel"),
        t.value("count", "Calls", exact=True),
        t.value("self_cpu_ms", "Own time, CPU (ms)"),
        t.value("self_device_ms", "Own time, GPU (ms)"),
    ]


def trainings() -> list[t.Column]:
    """Whole trainings of one rank."""
    return [
        t.factor("backend", "Backend"),
        t.factor("epochs", "Epochs"),
        t.factor("training_steps", "Steps"),
        t.factor("profiled", "Profiled"),
        t.median("train_s", "Training (s)"),
        t.iqr("train_s", "IQR (s)"),
        _with_spread("longer_s", "Longer by (s)", "itself"),
        t.value("epoch_s", "An epoch of it (s)"),
        published.trained(),
        t.count("train_s"),
        t.timer("train_s"),
    ]


def states() -> list[t.Column]:
    """Steps of one rank in each state of the profiler."""
    return [
        t.factor("backend", "Backend"),
        t.factor("state", "Profiler"),
        t.value("steps", "Steps", exact=True),
        t.median("time_ms", "Time (ms)"),
        t.iqr("time_ms", "IQR (ms)"),
        _with_spread("longer_ms", "Longer by (ms)", "itself"),
        _with_spread("against", "Against plain steps (×)", "no interval"),
        t.value("interval", "95 % interval", exact=True),
        t.value("verdict", "It is", exact=True),
        t.count("time_ms", "Turns"),
        t.timer("time_ms"),
    ]
