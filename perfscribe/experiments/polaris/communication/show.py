"""Tables and figure of communication: each record by metric, placement and rank; trainings of one rank."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd

from perfscribe.distributed.transport import TRANSPORTS
from perfscribe.experiments.polaris.communication.levels import SHOWN
from perfscribe.experiments.polaris.communication.measure import PLACEMENTS, RANKS
from perfscribe.instruments.statistics import ratio, summarise
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t

NAME = "communication"
TABLES, FIGURES = SHOWN.tables, SHOWN.figures
METRIC_NOTE = (
    "inter: 2 nodes x 1 rank, on one machine two processes joined by TCP over the loopback interface; intra: 1 node x "
    "2 ranks. Of rank 0, over the active steps of a profile, medians over interleaved turns; Impact is their ratio."
)
WAIT_NOTE = (
    "Transfer: for each collective the least time of any rank, an upper bound; waiting: the rest of that rank's time. "
    "All else: the rank's other kernels, copies and memsets, on a CPU its operators. These are sums over active steps."
)
TRAINING_NOTE = (
    "One rank under DistributedDataParallel, which then sends nothing. A profiled training holds one profile and the "
    "writing of its trace."
)
CAPTION = (
    "Communication of each rank by each tool, of the active steps of a profile: transfer, and on top of it waiting for "
    "the other rank. Medians over turns."
)
INTRA, INTER = "intra", "inter"
BOTH = (INTER, INTRA)
TITLES = {INTRA: "within a node (1 x 2)", INTER: "across nodes (2 x 1)"}
TITLE_CHARACTERS = 42  # per line of a panel's title
TOTAL, SHARE, MEAN = "Total communication time (ms)", "Share of all device time (%)", "Mean latency (ms)"
CALLS, TRANSFER, WAIT = "Calls", "Of it transfer (ms)", "Of it waiting (ms)"
METRICS = (TOTAL, SHARE, MEAN, CALLS, TRANSFER, WAIT)
TCP = f"{TRANSPORTS['tcp'][0]}, of one machine"
NO_SPREAD: dict[str, Any] = {"impact_spread": "no interval"}
TRAININGS = {"plain": "no", "first_profiled": "yes, the process's first profile", "profiled": "yes, a later profile"}

CELL = (t.factor("backend", "Backend"), t.factor("implementation", "Averaging"), t.factor("tool", "Tool"))


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the homework's table, that of ranks, and that of trainings."""
    cells = records[NAME]
    return [
        t.make(TABLES[0], "Communication across nodes and within one", metrics(cells), METRIC_COLUMNS, [METRIC_NOTE]),
        t.make(TABLES[1], "Transfer and waiting on each rank", _ranks(cells), RANK_COLUMNS, [WAIT_NOTE]),
        t.make(TABLES[2], "One rank, profiled and not", _trainings(cells), TRAINING_COLUMNS, [TRAINING_NOTE]),
    ]


def turns(record: Record, name: str) -> list[float]:
    """Return one value per turn, over all rounds."""
    return [sample for samples in record.samples[name] for sample in samples]


def _calls(record: Record, placement: str) -> str:
    """Return the collectives of a turn as text, which the column does not round; a range if turns differ."""
    counts = record.series[f"{placement}_calls"]
    low, high = int(min(counts)), int(max(counts))
    return f"{low}" if low == high else f"{low} to {high}"


# --- the homework's table ---------------------------------------------------------------------------------------


def metrics(records: Iterable[Record]) -> list[Record]:
    """Return one record per cell and metric: across nodes, within one, and the ratio; of rank 0, as in the homework."""
    return [_metric(record, metric) for record in t.having(records, part="placements") for metric in METRICS]


def _metric(record: Record, metric: str) -> Record:
    row = t.row_of(record, {}, metric=metric)
    if record.ok:
        across, within = (_series(record, placement)[metric] for placement in BOTH)
        for name, values in ((INTER, across), (INTRA, within)):
            row.values[name] = _calls(record, name) if metric == CALLS else median(values)
            row.values[f"{name}_spread"] = (
                "a count" if metric == CALLS else summarise([values]).iqr if len(values) > 1 else t.ONE_SAMPLE
            )
        row.values |= {"turns": len(across), **_impact(record, metric, across, within)}
    return row


def _series(record: Record, placement: str) -> dict[str, list[float]]:
    """Return each metric of rank 0 by turn."""
    total, wait, computed = (turns(record, f"{placement}_rank0_{name}_ms") for name in ("total", "wait", "compute"))
    # only the first round's counts are kept; counts of a cell must be equal to be compared anyway
    counts = record.series[f"{placement}_calls"]
    return {
        TOTAL: total,
        SHARE: [100 * ms / (ms + compute_ms) for ms, compute_ms in zip(total, computed, strict=True)],
        MEAN: [ms / counts[index % len(counts)] for index, ms in enumerate(total)],
        CALLS: [float(count) for count in counts],
        TRANSFER: turns(record, f"{placement}_transfer_ms"),
        WAIT: wait,
    }


def _impact(record: Record, metric: str, across: Sequence[float], within: Sequence[float]) -> dict[str, Any]:
    """Return the ratio of across nodes to within one, over turns; refused if the numbers of collectives differ.

    A different number of collectives is different work, or other steps.
    """
    calls_across, calls_within = (_calls(record, placement) for placement in BOTH)
    instead = ""
    if calls_across != calls_within or not calls_across.isdigit():
        instead = f"refused: {calls_across} calls against {calls_within}"
    elif metric == CALLS:
        instead = "equally many"
    elif min(*across, *within) <= 0:
        instead = "a turn without any"
    if instead:
        return NO_SPREAD | dict.fromkeys(("impact", "impact_interval", "impact_verdict"), instead)
    compared = ratio([[ms] for ms in within], [[ms] for ms in across])
    impact = {"impact": compared.ratio, "impact_interval": compared.interval}
    if compared.low is None or compared.high is None:
        return NO_SPREAD | impact | {"impact_verdict": compared.interval}
    verdict = {"faster": "less", "slower": "more"}.get(compared.verdict, compared.verdict)
    return impact | {"impact_verdict": verdict, "impact_spread": compared.high - compared.low}


METRIC_COLUMNS = [
    *CELL,
    t.factor("metric", "Metric"),
    t.rounded(INTER, "inter"),
    t.rounded(INTRA, "intra"),
    t.rounded("impact", "Impact (×)"),
    *t.exact(impact_interval="95 % interval", impact_verdict="Across nodes it is", turns="Turns"),
    *t.settings("dtype", "layers", "features", "batch", "active"),
]


# --- ranks ------------------------------------------------------------------------------------------------------


def _link(record: Record, placement: str) -> str:
    """Describe the link between the two ranks; gloo has only TCP."""
    if record.factors["backend"] == "gloo" or placement == INTER:
        return TCP
    return f"NCCL's choice ({record.values.get('intra_link', 'not told')})" if record.ok else "NCCL's choice"


def _ranks(records: Iterable[Record]) -> list[Record]:
    """Return one record per cell, placement and rank."""
    places = [(placement, rank) for placement in BOTH for rank in range(RANKS)]
    return [_rank(record, *place) for record in t.having(records, part="placements") for place in places]


def _rank(record: Record, placement: str, rank: int) -> Record:
    nodes, ranks_per_node = PLACEMENTS[placement]
    place = {"placement": placement, "nodes": nodes, "ranks_per_node": ranks_per_node, "link": _link(record, placement)}
    row = t.of_variant(record, f"{placement}_rank{rank}", **place, rank=rank)
    if record.ok:
        row.samples["transfer_ms"] = record.samples[f"{placement}_transfer_ms"]
        row.values["calls"] = _calls(record, placement)
    return row


RANK_COLUMNS = [
    *CELL,
    *t.factors(placement="Placement", nodes="Nodes", ranks_per_node="Ranks a node", link="Joined by", rank="Rank"),
    *t.timed("total_ms", "Total (ms)"),
    t.median("transfer_ms", "Transfer (ms)"),
    t.median("wait_ms", "Waiting (ms)"),
    t.median("slowest_ms", "Slowest call (ms)"),
    t.published(NAME, "alcf-training-series", "slowest_all_reduce_ms", "ALCF, slowest (ms)", "published_slowest_ms"),
    t.median("compute_ms", "All else (ms)"),
    t.median("step_ms", "Step, mean (ms)"),
    t.value("calls", "Calls", exact=True),
    t.count("total_ms"),
    t.timer("total_ms"),
]


# --- trainings of one rank --------------------------------------------------------------------------------------


def _trainings(records: Iterable[Record]) -> list[Record]:
    """Return one record per single-rank cell and kind of training."""
    cells = t.having(records, part="profiler")
    return [t.of_variant(cell, name, profiled=profiled) for cell in cells for name, profiled in TRAININGS.items()]


TRAINING_COLUMNS = [
    *t.factors(backend="Backend", epochs="Epochs", training_steps="Steps", profiled="Profiled"),
    *t.timed("train_s", "Training (s)"),
    t.derived("epoch_s", "An epoch of it (s)", lambda r: median(turns(r, "train_s")) / r.factors["epochs"]),
    t.count("train_s"),
    t.timer("train_s"),
]


# --- the figure -------------------------------------------------------------------------------------------------


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of transfer and waiting by rank."""
    draw = f.of(tables["polaris.communication_ranks"].ok, _draw_waiting)
    return [f.Figure(FIGURES[0], CAPTION, draw, (7.0, 3.4), sample="total_ms")]


def _draw_waiting(canvas: Any, rows: pd.DataFrame) -> None:
    """Draw a panel per placement, a bar per rank."""
    varied = [name for name in ("backend", "implementation") if rows[name].nunique() > 1]
    panels = canvas.subplots(1, len(TITLES), sharex=True, squeeze=False)[0]
    for axes, (placement, title) in zip(panels, TITLES.items(), strict=True):
        ranks = rows[rows["placement"] == placement]
        transfer, wait = (pd.to_numeric(ranks[name]).astype(float) for name in ("transfer_ms", "wait_ms"))
        places = range(len(ranks))
        axes.barh(places, transfer, color=f.COLOURS[0], height=0.6, label="transfer")
        axes.barh(places, wait, left=transfer, color=f.COLOURS[1], height=0.6, label="waiting for the other rank")
        described = ranks[varied].assign(by=[f"torch profiler, rank {rank}" for rank in ranks["rank"]])
        labels = [", ".join(row) for row in described.itertuples(index=False)]
        axes.set_yticks(places, labels if axes is panels[0] else [""] * len(places), fontsize=7)
        axes.invert_yaxis()
        links = textwrap.fill(", ".join(dict.fromkeys(ranks["link"])), TITLE_CHARACTERS)
        axes.set_title(f"{title}\n{links}", fontsize=7.5)
        axes.set_xlabel("Communication (ms)", fontsize=8)
        axes.grid(axis="y", visible=False)
    panels[0].set_xlim(left=0)
    handles, labels = panels[0].get_legend_handles_labels()
    canvas.legend(handles, labels, fontsize=7, loc="outside upper center", ncols=2)
