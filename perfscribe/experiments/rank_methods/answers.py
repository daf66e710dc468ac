"""The sentences about rank methods, placements, bindings and the time of training."""

from __future__ import annotations

import pandas as pd

from perfscribe.experiments.rank_methods import columns, judging, polaris
from perfscribe.experiments.rank_methods.words import METHODS
from perfscribe.findings import CannotTell, need
from perfscribe.parallel import binding
from perfscribe.parallel.mpi_start import MODULO, NOT_ASKED, SPLIT
from perfscribe.statistics import format_figure


def _named(names: list[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "none"


def _where(rows: pd.DataFrame) -> str:
    """The launches, a launcher's placements together."""
    groups = rows.groupby("launcher", sort=False)["placement"]
    return "; ".join(f"{launcher} ({_named(list(placed))})" for launcher, placed in groups)


def methods(rows: pd.DataFrame) -> tuple[str, str]:
    """Which methods were right under which launchers: run here first, then recorded."""
    need(rows, 3, "launches")
    sentences = []
    for origin, said in (("run here", "Run here"), ("recorded", "Recorded")):
        of = rows[rows["origin"] == origin]
        parts = [text for method, title in METHODS.items() if (text := _method(of, method, title))]
        sentences += [f"{said}: {'. '.join(parts)}."] if parts else []
    return " ".join([*sentences, _portable(rows)]), "answered"


def _method(rows: pd.DataFrame, method: str, title: str) -> str:
    """Where a method is right and where it is wrong; empty where it says nothing at all."""
    verdicts = rows[method]
    right = rows[verdicts == judging.RIGHT]
    wrong = rows[~verdicts.isin([judging.RIGHT, judging.NOTHING, judging.NO_LOCAL_RANK, NOT_ASKED])]
    if right.empty and wrong.empty:
        return ""
    found = f"{title} is right under {_where(right)}" if len(right) else f"{title} is right nowhere"
    return found + (f" and wrong under {_where(wrong)}" if len(wrong) else "")


def _portable(rows: pd.DataFrame) -> str:
    """What the write-up calls portable."""
    asked = rows[rows[SPLIT] != NOT_ASKED]
    right = int((asked[SPLIT] == judging.RIGHT).sum())
    return (
        "A launcher's own variables are right under that launcher alone and mostly silent under others. Write-up "
        f"001 calls the MPI approach portable: of {len(asked)} launches that mpi4py was asked in, its split of shared "
        f"memory was right in {right}, namely where MPI itself was started by the launcher; elsewhere it takes each "
        "process for a world of its own, or for the launcher's daemon, and says so without an error."
    )


def placement(detail: pd.DataFrame, rows: pd.DataFrame) -> tuple[str, str]:
    """Where rank mod device count fails and the split does not."""
    need(detail, 3, "ranks in recorded placements")
    parts = []
    for placed, group in detail.groupby("placement", sort=False):
        wrong = int((group["modulo_verdict"] != judging.RIGHT).sum())
        shared = int((group["shared_with"] != "nobody").sum())
        split = int((group["split"] == group["true_local_rank"]).sum())
        use = f"{shared} ranks would use a GPU together with another one" if shared else "no GPU has two ranks"
        parts.append(
            f"Placement {placed}: rank modulo the number of devices gives {wrong} of {len(group)} ranks a wrong "
            f"local rank, and {use}; COMM_TYPE_SHARED is right on {split} of {len(group)}"
        )
    of = rows[rows[MODULO].str.startswith(judging.LOCAL_WRONG)]
    both = of[of[SPLIT] == judging.RIGHT]
    return (
        f"{'. '.join(parts)}. Of all launches, the modulus gives wrong local ranks beside right global ones in "
        f"{len(of)}; in {len(both)} of these the split is right. With ranks in blocks on full nodes both are the same, "
        "as in write-up 001's run on one node.",
        "answered",
    )


def training(rows: pd.DataFrame) -> str:
    """Whether the method matters for the time of training."""
    cells = need(rows.drop_duplicates(["launcher", "method"]), 1, "launches that trained")
    sentences = []
    for launcher, group in cells.groupby("launcher", sort=False):
        times = group["training_s"].astype(float)
        shown = [f"{method} {format_figure(time_s)} s" for method, time_s in zip(group["method"], times, strict=True)]
        ratio = f", the longest {format_figure(times.max() / times.min())} times the shortest" if len(group) > 1 else ""
        sentences.append(f"{launcher}: {', '.join(shown)}{ratio}")
    return (
        f"Training until the slowest rank has ended, one run each, under {'; under '.join(sentences)}."
        f"{_published(rows)} A method "
        "is asked once, before the first step, and gives the same device here; what tells the runs of one launcher "
        "apart is therefore no cost of the method, and a difference like that of the two write-ups' runs cannot be "
        "told from noise by one run each."
    )


def _published(rows: pd.DataFrame) -> str:
    """The write-ups' times, or that they are of another workload."""
    told = rows[rows["published_s"] != "none"].drop_duplicates("method")
    same = told[told["published_s"] != columns.ANOTHER_WORKLOAD]
    theirs = [f"{row['method']} {format_figure(float(row['published_s']))} s" for _, row in same.iterrows()]
    if theirs:
        return f" Published, on other machines: {', '.join(theirs)}."
    return " The published times are of another workload, and stand beside none of these." if len(told) else ""


def bindings(rows: pd.DataFrame) -> tuple[str, str]:
    """Whether what was asked for was granted, and whether it is near to the GPU."""
    need(rows, 1, "bindings")
    parts = []
    for (machine, asked), group in rows.groupby(["machine", "cpu_bind"], sort=False):
        told = group[group["as_asked"] != "not told"]
        kept = f"{int((told['as_asked'] == 'yes').sum())} of {len(told)} masks as asked" if len(told) else "not run"
        near = group[group["gpu_cores"] != "no GPU"]["nearness"]
        counts = [f"{int((near == word).sum())} {word}" for word in (binding.NEAR, binding.PARTLY, binding.FAR)]
        place = "no GPU whose nearest cores are known" if near.empty else ", ".join(counts)
        parts.append(f"{asked} on {machine}: {kept}; {place}")
    return f"{'. '.join(parts)}.{_homework(rows)}", "answered"


def _homework(rows: pd.DataFrame) -> str:
    ours = rows[(rows["machine"] == polaris.NAME) & (rows["cpu_bind"] == polaris.HOMEWORK)]
    if ours.empty:
        raise CannotTell("the homework's binding on Polaris was not looked at")
    far = int((ours["nearness"] == binding.FAR).sum())
    return (
        f" Write-up 000 takes its masks for a proof of a right pinning. They are what was asked for, but with local "
        f"rank = GPU {far} of {len(ours)} ranks run on cores of a NUMA node that is not their GPU's: the list counts "
        "cores up, while on Polaris the GPUs' nearest cores count down."
    )
