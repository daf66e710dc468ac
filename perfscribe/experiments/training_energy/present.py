"""Table and answer of training_energy: what the watch counted beside each training of the workshop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from perfscribe import tables as t
from perfscribe.findings import CannotTell, Finding, counted, find, from_to, need
from perfscribe.records import Record
from perfscribe.statistics import format_figure
from perfscribe.tables import Table
from perfscribe.training_rows import nodes_of

TABLES = ("fsdp.energy",)
FIGURES = ()
READS = ("custom_multi_gpu",)
READS_IF_MEASURED = ("baseline", "multi_gpu", "weak_scaling")
NO_GPU, NOT_COUNTED = "not counted on a CPU", "not counted"
NO_CHOICE = "the model's own"
ONE_NODE_COUNTED = "not counted: only one node's GPUs are read"
NO_STEPS = "too few steps"
STEP_SAMPLES = {"step_ms": 1e-3, "step_s": 1.0}  # the baseline's are seconds
# Of the window: where steps are less than this share, start and end are most of the energy.
MOSTLY_STEPS = 50.0
NOTE = (
    "NVML's total energy of the GPUs that the cell used, in sum, from the start of its processes to their end: "
    "loading, evaluation and saving are in it, of the tuned loop compiling and finding its batch, too; steps are the "
    "share that is given. Energy a step of one GPU by "
    "itself: cs336.energy. Tokens: samples trained, by Trainer's count, times the length that they are padded to; "
    "tokens/J is over the whole window, hence the least. The host is in none of it."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """A row a training."""
    cells = [one for name in (*READS, *READS_IF_MEASURED) for one in records.get(name, []) if one.origin == "measured"]
    return [t.make(TABLES[0], "Energy of whole trainings", cells, _columns(), [NOTE])]


def _if_watched(get: Callable[[Record, dict[str, Any]], Any]) -> Callable[[Record], Any]:
    """A figure of the first round's watch; where no energy was counted why."""

    def figure(record: Record) -> Any:
        if not record.ok:
            return None
        if record.factors.get("device") != "cpu" and nodes_of(record) > 1:
            return ONE_NODE_COUNTED
        watch = record.watch[0] if record.watch else {}
        if watch.get("energy_j") is None:
            return NO_GPU if record.factors.get("device") == "cpu" else NOT_COUNTED
        return get(record, watch)

    return figure


def _tokens(record: Record) -> float | None:
    f = record.factors
    if record.experiment == "baseline":
        return float(f["rows"] * f["num_epochs"] * f["max_length"])
    rate, seconds = (record.values.get(name) for name in ("train_samples_per_second", "train_runtime_s"))
    numbers = isinstance(rate, (int, float)) and isinstance(seconds, (int, float))
    return float(rate) * float(seconds) * float(f["max_length"]) if numbers else None  # type: ignore[arg-type]


def _tokens_per_j(record: Record, watch: dict[str, Any]) -> Any:
    found = _tokens(record)
    return t.NOT_RECORDED if found is None else found / watch["energy_j"]


def _window(record: Record) -> Any:
    return record.watch[0]["window_s"] if record.ok and record.watch else t.NOT_RECORDED if record.ok else None


def _step_share(record: Record) -> Any:
    """Percent of the window that timed steps were."""
    if not record.ok:
        return None
    steps_s = [
        time * in_s for name, in_s in STEP_SAMPLES.items() for one in record.samples.get(name, [])[:1] for time in one
    ]
    if not steps_s or not record.watch:
        return NO_STEPS
    return 100 * sum(steps_s) / record.watch[0]["window_s"]


def _model(record: Record) -> str:
    f = record.factors
    return str(f.get("model_name") or f["model"])


def _layers(record: Record) -> Any:
    """Of a model that the config describes layer by layer."""
    return record.factors.get("num_layers", NO_CHOICE)


def _dtype(record: Record) -> str:
    """The baseline names it by Trainer's switches."""
    f = record.factors
    return str(f.get("dtype") or next((name for name in ("fp16", "bf16") if f.get(name)), "fp32"))


def _columns() -> list[t.Column]:
    return [
        t.Column("experiment", "Experiment", lambda r: r.experiment, kind="factor", exact=True),
        t.Column("model", "Model", _model, kind="factor", exact=True),
        t.Column("labels", "Labels", lambda r: r.factors.get("labels", NO_CHOICE), kind="factor", exact=True),
        t.Column("layers", "Layers", _layers, kind="factor", exact=True),
        t.Column("nodes", "Nodes", nodes_of, kind="factor", exact=True),
        t.Column("ranks", "Ranks", lambda r: r.factors.get("world_size", 1), kind="factor", exact=True),
        t.Column("loop", "Loop", lambda r: r.factors.get("loop", "trainer"), kind="factor", exact=True),
        t.factor("device", "Device"),
        t.Column("dtype", "Dtype", _dtype, kind="factor", exact=True),
        t.derived("window_s", "Window (s)", _window),
        t.derived("step_percent", "Of it steps (%)", _step_share),
        t.derived("energy_kj", "Energy (kJ)", _if_watched(lambda r, watch: watch["energy_j"] / 1e3)),
        t.derived("power_w", "Mean power (W)", _if_watched(lambda r, watch: watch["energy_j"] / watch["window_s"])),
        t.derived(
            "power_a_gpu_w",
            "Of one GPU (W)",
            _if_watched(lambda r, watch: watch["energy_j"] / watch["window_s"] / r.factors.get("world_size", 1)),
        ),
        t.derived("tokens_per_j", "Tokens/J, at least", _if_watched(_tokens_per_j)),
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """What training costs on more GPUs."""
    return [find("fsdp.energy", TABLES, lambda: _costs(tables[TABLES[0]].ok))]


def _costs(rows: pd.DataFrame) -> str:
    need(rows, 1, "trainings")
    known = rows.assign(
        rate=pd.to_numeric(rows["tokens_per_j"], errors="coerce"),
        share=pd.to_numeric(rows["step_percent"], errors="coerce"),
    ).dropna(subset="rate")
    if known.empty:
        raise CannotTell(f"no energy was counted: {rows.iloc[0]['energy_kj']}")
    best = known.loc[known["rate"].idxmax()]
    worst = known.loc[known["rate"].idxmin()]
    short = int((known["share"] < MOSTLY_STEPS).sum())
    text = (
        f"Over the whole of each training, tokens/J go from {format_figure(worst['rate'])} ({_named(worst)}) to "
        f"{format_figure(best['rate'])} ({_named(best)})."
    )
    if short:
        text += (
            f" In {short} of {counted(len(known), 'training')} the steps take less than {MOSTLY_STEPS:g} % of that "
            "time: what they cost is then mostly starting, compiling where that is done, evaluating and saving."
        )
    return text + _of_more_ranks(known)


def _of_more_ranks(known: pd.DataFrame) -> str:
    """The energy a token of most ranks on one node over that of one, of the same model trained by the same loop."""
    times: dict[int, list[float]] = {}
    same = ["experiment", "model", "labels", "layers", "loop", "device", "dtype"]
    for _, own in known[known["nodes"] == 1].groupby(same, sort=False):
        by_ranks = own.drop_duplicates("ranks").set_index("ranks")["rate"]
        if 1 in by_ranks.index and len(by_ranks) > 1:
            most = max(by_ranks.index)
            times.setdefault(int(most), []).append(by_ranks[1] / by_ranks[most])
    said = (f"{ranks} ranks take {from_to(ratios)} times the energy a token" for ranks, ratios in times.items())
    return f" Of the same model, loop and dtype, {', '.join(said)} of one." if times else ""


def _named(row: pd.Series) -> str:
    return f"{row['model']}, {row['loop']}, {counted(int(row['ranks']), 'rank')}, {row['dtype']}"
