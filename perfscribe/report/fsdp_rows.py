"""What the chapters of the FSDP workshop share: how rows of its tables are found, and what is said of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfscribe.report.cells import NO_SUCH_THING, Cell, as_cell
from perfscribe.report.site import Row, Site, entry, figure, from_to, ok

OF_GPUS = ("avg_mem_total_gb", "avg_mem_alloc_gb", "gpu_util_percent")  # columns that a CPU has not
DEFAULT, RATE, STEPPING = "train_samples_per_second", "samples_per_s_callback", "stepping_samples_per_second"
TRAINED = ("fsdp.single_runs", "fsdp.multi_gpu", "fsdp.custom_multi_gpu")
RANDOM = "random"  # weights of a model that nobody trained before
LOSS = "loss: mean over all steps"
WORKLOAD = {"batch_size": "batch {}", "grad_acc": "accumulation {}", "max_length": "{} tokens"}
WORKLOAD |= dict.fromkeys(("train_size", "rows"), "{} rows")


def run(site: Site, table: str, world: int | str, **levels: str) -> Row | None:
    """A training on so many ranks; where there is none, what says why."""
    found = site.row(table, world_size=world, **levels)
    others = site.rows(table, world_size=world)
    return found or next((row for row in others if not ok(row)), None)


def cell(site: Site, row: Row | None, column: str, mark: str = "") -> Cell:
    """The figure of a row as a cell."""
    if column in OF_GPUS and not site.gpu:
        return NO_SUCH_THING
    return as_cell(row, column, mark=mark)


def several_nodes(site: Site, nodes: int | str) -> str:
    """† for several nodes that are name spaces of one machine."""
    return "†" if int(nodes or 1) > 1 and site.emulated else ""


def rounds(*rows: Row | None) -> str:
    """How often each was trained."""
    counts = sorted({int(entry(row, "rounds", "1")) for row in rows if ok(row)})
    if counts[-1:] in ([], [1]):
        return "one run each"
    return f"median ± half the range of {from_to(counts[0], counts[-1])} rounds"


def trained(row: Row, rows: Sequence[Row]) -> str:
    """Precision, batch and so on of a training. rows: all of its table's."""
    clock = "Trainer's clock" if row["loop"] == "trainer" else "host clock"
    labels = "" if row["labels"] == "answer" else ", the scripts' labels"
    return f"{workload(row)}{labels}, {rounds(*rows)}, {clock}"


def workload(row: Row | None, *varied: str) -> str:
    """Precision, batch and so on of a training, as far as its table has them. varied: those that differ by row."""
    told = [text.format(entry(row, name)) for name, text in WORKLOAD.items() if entry(row, name) and name not in varied]
    return ", ".join([entry(row, "dtype").upper(), *told])


def same_step(site: Site) -> str:
    """What a step of one unit on most ranks took in the two experiments that time it."""
    unit = {"api": "FSDP1", "wrapping": "none: one unit"}
    one = site.largest("fsdp.wrapping", "step_ms", "world_size", prefetch="backward_post, forward", **unit)
    same = {name: entry(one, name) for name in ("model", "world_size", "dtype", "batch", "seq_len")}
    other = next(filter(ok, site.rows("fsdp.step", **unit, **same)), None)
    times = f"{figure(other, 'step_ms')} ms in fsdp.step and {figure(one, 'step_ms')} in fsdp.wrapping"
    return f"The same step (FSDP1 in one unit, batch {same['batch']}, {site.ranks(same['world_size'])}) took {times}."


def weights(row: Row | None) -> str:
    """That a model begins with random weights, where the run says so."""
    return ", random weights" if entry(row, "weights") == RANDOM else ""


def parameters(row: Row | None, column: str = "parameters") -> str:
    """Of a model, in millions."""
    return f"{int(row[column]) / 1e6:.4g} M parameters" if ok(row) else ""


def losses(row: Row | None) -> str:
    """Which loss a table has; the first that was logged, of one step or the mean of a few; that of no knowledge."""
    first = figure(row, "first_loss")
    logged = f", first logged in the first row {first}" * bool(first)
    guess = f"; of a uniform guess {math.log(int(row['vocab_size'])):.3g}" if row and vocabulary(row) else ""
    return f"{LOSS}{logged}{guess}"


def vocabulary(row: Row | None) -> str:
    """Of the custom model."""
    return f"vocabulary {int(row['vocab_size']):,}" if row and row.get("vocab_size") else ""
