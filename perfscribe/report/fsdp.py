"""The FSDP workshop: trainings of BLOOM and of its custom model on one GPU, on several, and on several nodes."""

from __future__ import annotations

import csv
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import ceil
from pathlib import Path

from perfscribe.analytic.workshop_shapes import BLOOM_TOKENIZER_VOCABULARY as VOCABULARY
from perfscribe.analytic.workshop_shapes import SimpleGptShape
from perfscribe.report.cells import NO_SUCH_THING, NOT_MEASURED, Cell, as_cell, shown, word
from perfscribe.report.problem import Answer, Detail, Entries, Finding, Part, Problem, Table, Title, Why, said
from perfscribe.report.site import Row, Site, entry, figure, from_to, ok, so_many
from perfscribe.show.rounding import NO_FIGURE, Figure

TITLE = "FSDP workshop"
DEFECTS = Path(__file__).resolve().parents[2] / "docs" / "defects.csv"
OF_GPUS = ("avg_mem_total_gb", "avg_mem_alloc_gb", "gpu_util_percent")  # columns that a CPU has not
DEFAULT, RATE, STEPPING = "train_samples_per_second", "samples_per_s_callback", "stepping_samples_per_second"
# Headers, as the workshop has them, and where their figures are from.
BLOOM = {
    "Samples/s": DEFAULT,
    "Samples/s Scale Factor": "samples_scale",
    "Runtime (s)": "train_runtime_s",
    "Runtime Scale Factor": "runtime_scale",
    "Loss": "train_loss",
    "GPU Memory Allocated (GB)": "avg_mem_total_gb",
}
CUSTOM = {
    "Samples/s (Default)": DEFAULT,
    "Samples/s (Callback)": RATE,
    "GPU Memory (GB, Default)": "avg_mem_total_gb",
    "GPU Memory (GB, Callback)": "avg_mem_alloc_gb",
    "GPU Utilization (%)": "gpu_util_percent",
    "Loss": "train_loss",
    "Runtime (s)": "train_runtime_s",
}
TRAINED = ("fsdp.single_runs", "fsdp.multi_gpu", "fsdp.custom_multi_gpu")
RANDOM = "random"  # weights of a model that nobody trained before
SCALES = "scale factors: samples/s(N) / samples/s(1), runtime(1) / runtime(N)"
CLOCKS = "Default: {} rate, all memory in use; Callback: its own rate, memory allocated between steps"
LOSS = "loss: mean over all steps"
SAMPLED = "; GPU utilization: NVML, at the end of each optimizer step"
ON_ONE_HOST = "; † nodes are name spaces of one machine"
WORKLOAD = {"batch_size": "batch {}", "grad_acc": "accumulation {}", "max_length": "{} tokens"}
WORKLOAD |= dict.fromkeys(("train_size", "rows"), "{} rows")

Line = tuple[Entries, Row | None]


def run(site: Site, table: str, world: int | str, **levels: str) -> Row | None:
    """A training on so many ranks; where there is none, what says why."""
    found = site.row(table, world_size=world, **levels)
    others = site.rows(table, world_size=world)
    return found or next((row for row in others if not ok(row)), None)


def given(site: Site, table: str, world: int, **levels: str) -> Row | None:
    """A training as the scripts have it, one unit of FSDP1, before others."""
    found = run(site, table, world, wrapped_by="FSDP1", **levels)
    return found if ok(found) else run(site, table, world, **levels)


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


def compiled(row: Row | None) -> str:
    """How our tuned loop trains."""
    return f"{entry(row, 'dtype').upper()}, compiled, {entry(row, 'batch')} rows per GPU"


def outside_steps(row: Row | None) -> str:
    """How much of a training's runtime is not in its steps."""
    whole, steps = figure(row, DEFAULT), figure(row, STEPPING)
    return f"{whole.of(100 * (1 - whole.value / steps.value), steps)} % of the runtime is outside the steps"


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


def pace(rate: Figure, plain: Figure) -> str:
    """A rate in percent of another, or that noise hides the difference."""
    if rate.within_noise(plain):
        return "the same speed within noise"
    return f"{rate.share(plain)} % of the speed without it"


class NineRows(Problem):
    """A training on one device with the nine rows of the workshop's result tables."""

    tables = what = model = on_gpu = ""
    RUNS, SCRIPTS_MODEL = "fsdp.single_runs", "SimpleGPTModel"
    accumulation = "4"
    # Where the workshop finds each, and the column of the trainings, or the epoch of the evaluation.
    METRICS = (
        ("Train Loss (Final)", "train_loss of the summary, the mean over all steps", "mean_train_loss"),
        *((f"Eval Loss (Epoch {epoch})", "eval/loss", f"{epoch}.0") for epoch in (1, 2, 3)),
        ("Training Speed (samples/sec)", "train_samples_per_second", "train_samples_per_s"),
        ("Evaluation Speed (samples/sec)", "eval/samples_per_second, median", "eval_samples_per_s"),
        ("Steps per Epoch", "steps over epochs", "steps_per_epoch"),
        ("Memory Allocated (MB)", "torch's allocator", "peak_gib"),
        ("GPU Utilization (%)", "NVML, mean over the training", "gpu_utilisation_percent"),
    )

    def _prepare(self, site: Site) -> None:
        self.runs = {labels: self.run(labels) for labels in ("answer", "source")}
        self.rows_trained = {labels: figure(run, "rows") for labels, run in self.runs.items()}
        self.unlike = []
        # The scripts' labels trained fewer rows.
        if len({one.value for one in self.rows_trained.values() if one}) > 1:
            self.unlike.append(f"{self.rows_trained['source'].value:.0f} rows by the scripts' labels, no checkpoints")
        accumulated = entry(self.runs["answer"], "grad_acc", self.accumulation)
        if accumulated != self.accumulation:
            self.unlike.append(f"accumulation {accumulated} in place of the script's {self.accumulation}")
        self.mark = "‡" if site.gpu and self.unlike else ""

    def run(self, labels: str) -> Row | None:
        """The training of its model with these labels, one that is ok before others."""
        rows = self.site.rows(self.RUNS, labels=labels)
        custom = self.model == self.SCRIPTS_MODEL
        found = [row for row in rows if row["model_name"].startswith(self.SCRIPTS_MODEL) == custom]
        return next(filter(ok, found), next(iter(found), None))

    def nine(self, *published: str) -> Table:
        """Its table."""
        found = next(filter(ok, self.runs.values()), self.runs["answer"])
        model = entry(self.runs["answer"], "model_name", self.model).split("/")[-1]
        model = (self.site.gpu and self.on_gpu) or model + weights(self.runs["answer"]) * model.startswith("bloom")
        epochs = self.site.levels(f"{self.tables}_losses", "epoch")
        passes = max((ceil(float(epoch)) for epoch in epochs), default=0)
        passed = f"{so_many(passes, 'epoch')}, " if passes else ""
        other = f"; ‡ {', '.join(self.unlike)}" if self.mark else ""
        measured = filter(ok, self.runs.values())
        return Table(
            f"{self.what}{self.mark}.",
            f"{model}, {workload(found)}, {passed}{self.site.one_device}, {rounds(found)}; Your Value: labels that "
            f"train the answer; train loss: mean over all steps; memory: peak{self.site.machines(measured)}{other}.",
            ["Metric", "Log Location & Extraction", "Your Value", "scripts' labels"],
            [
                [metric, where, *(self.value(column, labels) for labels in self.runs)]
                for metric, where, column in self.METRICS
            ],
            self.later(),
            *published,
        )

    def value(self, column: str, labels: str) -> Cell:
        """A metric of a training."""
        run = self.runs[labels]
        if column == "gpu_utilisation_percent" and not self.site.gpu:
            return NO_SUCH_THING
        found = figure(run, column, 1000 if column == "peak_gib" else 1)
        if column[0].isdecimal():
            found = self.site.value(f"{self.tables}_losses", "eval_loss", labels=labels, epoch=column)
        return shown(replace(found, exact=column == "steps_per_epoch"), run)

    def epochs(self, labels: str = "answer") -> list[Row]:
        """Losses after each epoch, where there are several."""
        found = list(filter(ok, self.site.rows(f"{self.tables}_losses", labels=labels)))
        return found if len(found) > 1 else []

    def least(self, labels: str = "answer") -> Row | None:
        """The epoch after which evaluation loss is least."""
        return min(self.epochs(labels), key=lambda row: figure(row, "eval_loss").value, default=None)

    def at_least(self, labels: str = "answer") -> Figure:
        """The epoch of the least evaluation loss."""
        return replace(figure(self.least(labels), "epoch"), exact=True)

    def memory(self, moment: str, scale: float = 1) -> Figure:
        """In GB."""
        return figure(self.runs["answer"], f"{moment}_gib").plain(scale)

    def later(self) -> str:
        """The line below the table."""
        more = self.epochs()[3:]
        losses, copied = (
            ", ".join(f"{figure(row, 'eval_loss')}" for row in self.epochs(labels)[3:])
            for labels in ("answer", "source")
        )
        row = self.site.row(f"{self.tables}_answers", labels="answer", training="after")
        exact, overlap = (figure(row, f"{score}_percent") for score in ("exact_match", "f1"))
        which = ", ".join(f"{float(row['epoch']):.0f}" for row in more)
        line = f"Epochs {which}: evaluation loss {losses}, with the scripts' labels {copied}. " if more else ""
        line += f"Between steps {self.memory('at_rest', 1000)} MB are allocated; "
        line += f"EM / F1 after training {exact} / {overlap} %{self.mark}."
        return line if self.epochs() else ""


class Baseline(NineRows):
    """BLOOM on one device."""

    heading = "Baseline: BLOOM Fine-tuning without FSDP"
    details = ("fsdp.labels", "fsdp.baseline_losses", "fsdp.baseline_answers", "fsdp.single_runs")
    figure = "fsdp.baseline_losses"
    tables, what, model = "fsdp.baseline", "BLOOM fine-tuning on one device", "bloom-560m"

    def parts(self) -> Iterator[Part]:
        """Losses, rates and memory; what evaluation takes of the time."""
        yield self.nine(
            "Published: 003, log sample of other settings (1,500 samples in 3 epochs): eval loss 1.2965, 1.5810, "
            "1.7790; 11.971 samples/s."
        )
        mark, epochs, least = self.mark, self.epochs(), self.least()
        whole, steps = (figure(self.runs["answer"], one) for one in ("train_runtime_s", "all_steps_s"))
        share = whole.of(100 * sum(figure(row, "eval_runtime_s").value for row in epochs) / whole.value)
        rest = whole.of(100 - steps.share(whole).value - share.value)
        parts = f"{steps.share(whole)} % in steps, {share} % in evaluation, {rest} % elsewhere"
        times = f"Training takes {whole} s: {parts}{mark}."
        yield Answer(times if epochs else "")
        yield Answer(
            f"Memory peaks at {self.memory('peak')} GB and is {self.memory('at_rest')} GB between steps{mark}."
        )
        if least is None:
            return
        after, training = (figure(epochs[-1], one) for one in ("eval_loss", "train_loss"))
        first = f"Evaluation loss is lowest after epoch {self.at_least()}"
        later = f"{after} after epoch {len(epochs)}, whose mean training loss"
        losses = f"{first} ({figure(least, 'eval_loss')}) and {later}"
        if least is epochs[-1]:
            losses = f"Evaluation loss falls to {after} after {len(epochs)} epochs, when training loss"
        yield Answer(f"{losses} is {training}{mark}.")
        yield Title(f"{first}, while training loss falls to {training}{mark}")


class CustomSingleNode(NineRows):
    """The custom model on one device."""

    heading = "Custom Model Fine-Tuning (Single Node)"
    details = ("fsdp.custom_single_node_losses", "fsdp.custom_single_node_answers")
    figure = "fsdp.custom_single_node_losses"
    tables, what = "fsdp.custom_single_node", "Custom model on one device"
    model, on_gpu = NineRows.SCRIPTS_MODEL, "1 layer, d 1024, vocabulary 250,680, 534.6 M parameters"
    accumulation = "1"

    def parts(self) -> Iterator[Part]:
        """Losses, rates and memory; what the labels of the scripts train."""
        yield self.nine()
        theirs, ours = (
            f"{figure(self.least(labels), 'eval_loss')} (epoch {self.at_least(labels)})"
            for labels in ("source", "answer")
        )
        read, targets = (
            self.site.value("fsdp.labels", one, way="source_prompt") for one in ("targets_read", "targets")
        )
        losses = f"The lowest evaluation loss is {theirs} with the scripts' labels, {ours} with answer labels"
        yield Answer(
            f"{losses}{self.mark}.",
            f"Memory peaks at {self.memory('peak')} GB{self.mark}.",
            Why(
                "The scripts' labels are the input itself, so the model learns to copy it.",
                read.value >= targets.value,
            ),
        )
        yield Title(f"{losses}{self.mark}")


class TimedSteps(Problem):
    """Steps timed in the homework's dtype, or in one that has more of the rows: they compare within one dtype alone."""

    ROWS: Sequence[Sequence[str]] = ()

    def _prepare(self, site: Site) -> None:
        own = next(iter(site.levels(self.table, "model")), "gpt-tiny")
        self.model = "bigscience/bloom-560m" if site.gpu else own
        self.world = max((int(one) for one in site.levels(self.table, "world_size", model=self.model)), default=2)
        dtypes = ("fp16", "bf16") if site.gpu else ("fp32", "bf16", "fp16")
        self.dtype = max(dtypes, key=lambda dtype: sum(ok(self.found(*row, dtype=dtype)) for row in self.ROWS))
        self.mark = "‡" if site.gpu and self.dtype == "bf16" else ""

    @abstractmethod
    def found(self, *row: str, dtype: str = "") -> Row | None:
        """The source of a row, in the table's dtype or another."""

    def setup(self, each: str, more: str) -> str:
        """What stands behind the title. each: after the batch; more: after the peak."""
        levels = {"model": self.model, "dtype": self.dtype, "world_size": str(self.world)}
        count = self.site.of_so_many(self.table, "step_ms_n", **levels)
        dtype, lengths = self.dtype.upper(), " and ".join(self.site.levels(Strategies.table, "seq_len"))
        return (
            f"{self.model.split('/')[-1]}, {dtype}, batch {self.site.batch_of(Strategies.table, '1')}{each}"
            f"{lengths and f', {lengths} tokens'}, median ± half IQR{count} steps, host clock with synchronise; peak "
            f"of allocated memory{more}{f'; ‡ {dtype} in place of FP16' if self.mark else ''}."
        )


class WorldOfOne(TimedSteps):
    """FSDP where there is nothing to shard."""

    heading = "Single-GPU FSDP"
    details = ("fsdp.world_of_one",)
    SETUPS = {  # noqa: RUF012
        "without FSDP": ("none", "the model alone", "no"),
        "FSDP1 FULL_SHARD": ("FSDP1", "FULL_SHARD", "no"),
        "FSDP2 FULL_SHARD": ("FSDP2", "FULL_SHARD", "no"),
        "FSDP2 FULL_SHARD, CPU off-load": ("FSDP2", "FULL_SHARD", "yes"),
        "DDP": ("DDP", "DDP", "no"),
    }
    ROWS = tuple((name,) for name in SETUPS)

    def parts(self) -> Iterator[Part]:
        """By strategy; what FSDP1 does with one rank, what off-load saves and costs."""
        mark, rows = self.mark, {setup: self.found(setup) for setup in self.SETUPS}
        yield Table(
            f"Setups on one {self.site.rank}{mark}.",
            self.setup("", ""),
            ["Setup", "took effect as", "Samples/s", "Peak memory (GB)", "state on"],
            [
                [
                    setup,
                    word(entry(row, "applied_strategy") if ok(row) else ""),
                    as_cell(row, "samples_per_s"),
                    as_cell(row, "peak_allocated_gib"),
                    word(entry(row, "state_device") if ok(row) else ""),
                ]
                for setup, row in rows.items()
            ],
        )
        alone, one, plain, off_load, _ = rows.values()
        peaks = [figure(row, "peak_allocated_gib") for row in (one, alone, off_load)]
        speed = pace(figure(off_load, "samples_per_s"), figure(plain, "samples_per_s"))
        yield Answer(
            f"FSDP1 on one {self.site.rank} runs as {entry(one, 'applied_strategy')} and needs {peaks[0]} GB, "
            f"{peaks[1]} without FSDP{mark}.",
            f"With off-load FSDP2 needs {peaks[2]} GB and runs at {speed}{mark}." if self.site.gpu else "",
        )

    def found(self, *row: str, dtype: str = "") -> Row | None:
        """The source of a set-up, in the table's dtype or another."""
        levels = dict(zip(("api", "strategy", "offload"), self.SETUPS[row[0]], strict=True))
        levels |= {"model": self.model, "dtype": dtype or self.dtype}
        return self.site.row(self.table, checkpointing="no", **levels)


class Strategies(TimedSteps):
    """Sharding strategies, off-load and checkpointing on most ranks."""

    heading = "Sharding Strategies & Off-loading"
    details = ("fsdp.strategies", "fsdp.wrapping", "fsdp.offload_accumulation")
    figure = "fsdp.strategies"
    COLUMNS = {  # noqa: RUF012
        "Samples/s": "samples_per_s",
        "Step (ms)": "step_ms",
        "Peak memory (GB)": "peak_allocated_gib",
        "State per GPU (GB)": "state_gib",
        "Sent per step (MB)": "sent_mb",
    }
    MARKS = {"HYBRID_SHARD": "†"}  # noqa: RUF012 of one machine's ranks, which stand for two nodes
    GIVEN = "FULL_SHARD as given (one unit)"
    # Strategy, off-load, checkpointing.
    ROWS = (
        ("DDP", "no", "no"),
        ("FULL_SHARD", "no", "no"),
        ("SHARD_GRAD_OP", "no", "no"),
        ("HYBRID_SHARD", "no", "no"),
        (GIVEN, "no", "no"),
        ("FULL_SHARD", "yes", "no"),
        ("FULL_SHARD", "no", "yes"),
        ("FULL_SHARD", "yes", "yes"),
        ("SHARD_GRAD_OP", "yes", "no"),
    )

    def parts(self) -> Iterator[Part]:
        """By strategy; the fastest, the smallest, what off-load and checkpointing save and cost."""
        site, mark, dtype = self.site, self.mark, self.dtype.upper()
        on = site.ranks(self.world)
        nodes = f"; † one machine's {on} as two nodes" if ok(self.found(*self.ROWS[3])) else ""
        given = self.found(self.GIVEN)
        turns = f"{entry(given, 'step_ms_n')} turns"
        api = f"; one unit: FSDP1, {turns}; other shards: FSDP2 per block" if ok(given) else ""
        yield Table(
            f"Strategies on {on}{mark}.",
            self.setup(" per rank", f"; state per rank, with off-load on the CPU{api}{nodes}"),
            ["Strategy", "CPU off-load", "Activation checkpointing", *self.COLUMNS],
            [[*row, *(self.cell(row, column) for column in self.COLUMNS.values())] for row in self.ROWS],
        )
        yield Detail(same_step(site))
        yield Detail(self.exchanges())
        small, memory = min(self.all("peak_allocated_gib"), key=lambda one: one[1].value)
        least = f"{small} needs least, {memory} GB{mark}"
        left = any(entry(self.found(*row), "status") == "not_run" for row in self.ROWS)
        of = f" of {len(self.all('samples_per_s'))} measured" if left else ""
        if self.world == 1:
            yield Answer(f"On {on} every shard is the whole model; {least}.", f"{', '.join(self.costs())}{mark}.")
            yield Finding(3, "fsdp", f"CPU {self.costs()[0].replace('Off-load', f'off-load on {on}')}{mark}.")
            return
        (fast, speed), (second, next_speed) = sorted(self.all("samples_per_s"), key=lambda one: -one[1].value)[:2]
        fastest = f"{fast} is fastest{of}, {speed} samples/s"
        then = f", then {second}" if fast == "DDP" else ""
        doubt = f" ({second} within noise)" * speed.within_noise(next_speed)
        half, full, ddp = (figure(self.found(one), "state_gib").value for one in ("SHARD_GRAD_OP", "FULL_SHARD", "DDP"))
        yield Answer(
            f"{fastest}{doubt or then}; {least}.",
            f"{', '.join(self.costs())}{mark}." if site.gpu else "",
            Why("SHARD_GRAD_OP's parameters are sharded outside the passes, not replicated.", half <= full < ddp),
        )
        yield Title(f"On {on} in {dtype} {fastest}{doubt}{mark}")
        yield Finding(3, "fsdp", f"On {on} in {dtype} {fastest}{doubt or (then and f'{then}, {next_speed}')}; {least}.")

    def cell(self, row: Sequence[str], column: str) -> Cell:
        """A figure of a strategy; state is measured where each plan is alone."""
        if row[0] == self.GIVEN and column == "state_gib":
            return NO_SUCH_THING
        return cell(self.site, self.found(*row), column, self.MARKS.get(row[0], ""))

    def exchanges(self) -> str:
        """What one unit sends as given, and by FSDP2."""
        levels = {"model": self.model, "world_size": self.world, "dtype": self.dtype, "wrapping": "none: one unit"}
        rows = [self.site.row("fsdp.wrapping", api=api, **levels) for api in ("FSDP1", "FSDP2")]
        given, ours = (f"{figure(row, 'sent_mb')} MB in {entry(row, 'collectives')}" for row in rows)
        return f"In one unit FSDP1 sends {given} collectives per step, FSDP2 {ours}."

    def found(self, *row: str, dtype: str = "") -> Row | None:
        """The source of a strategy, off-load and checkpointing, in the table's dtype or another."""
        strategy, off_load, checkpointing = (*row, "no", "no")[:3]
        levels: dict[str, str | int] = {"model": self.model, "world_size": self.world, "dtype": dtype or self.dtype}
        if strategy == self.GIVEN:
            return self.site.row("fsdp.wrapping", api="FSDP1", wrapping="none: one unit", **levels)
        levels |= {"api": "DDP" if strategy == "DDP" else "FSDP2", "strategy": strategy, "offload": off_load}
        return self.site.row(self.table, checkpointing=checkpointing, **levels)

    def all(self, column: str) -> list[tuple[str, Figure]]:
        """Every strategy that has the figure, by name; several."""
        found = []
        for strategy, off_load, checkpointing in self.ROWS:
            one = figure(self.found(strategy, off_load, checkpointing), column)
            name = strategy.replace(" as given", "") + self.MARKS.get(strategy, "")
            on = " and ".join(["off-load"] * (off_load == "yes") + ["checkpointing"] * (checkpointing == "yes"))
            found += [(f"{name}{f' with {on}' if on else ''}", one)] if one else []
        return found if len(found) > 1 else [("", NO_FIGURE)] * 2

    def costs(self) -> tuple[str, str]:
        """What off-load and checkpointing save, and at what speed."""
        said, plain = [], self.found("FULL_SHARD")
        for row in (self.found("FULL_SHARD", "yes"), self.found("FULL_SHARD", "no", "yes")):
            whole, peak = (figure(one, "peak_allocated_gib").value for one in (plain, row))
            saved = Figure(whole - peak)
            speed = pace(figure(row, "samples_per_s"), figure(plain, "samples_per_s"))
            said.append(("no memory" if saved.value < whole / 200 else f"{saved} GB", speed))
        (first, slow), (second, slower) = said
        slower = slower.removesuffix(" of the speed without it")
        return f"Off-load saves {first} and runs at {slow}", f"checkpointing saves {second} and runs at {slower}"


class Scaling(Problem):
    """Trainings by ranks or nodes, a row each; what they have in common is said in the title and behind it."""

    what = ""
    one = "Single Node, Single {}"  # label of a row of one rank
    columns: dict[str, str] = {}  # noqa: RUF012

    def _prepare(self, site: Site) -> None:
        trained = site.levels(self.table, "world_size")
        swept = site.swept(self.table, "world_size", ("1", "2", "4", "8"), ("1", "2", "4"))
        self.counts = sorted(map(int, {*swept, *trained}))  # numbers of ranks of the rows
        self.world = max(map(int, trained), default=1)  # most ranks that were measured
        self.first = run(site, self.table, 1, wrapped_by="none")
        # What several ranks compare with.
        self.alone = f"one {site.rank}{' without FSDP' * (entry(self.first, 'wrapped_by') == 'none')}"

    def scaling(self, what: str, lines: Sequence[Line], *notes: str) -> Table:
        """The table. lines: labels and the source's rows. A mark that all measured rows share is in its title."""
        measured = [row for _, row in lines if ok(row)]
        any_row = next(filter(None, [self.first, *measured, *(row for _, row in lines)]), None)
        found = [self.mark(row) for row in measured]
        common = "".join(one for one in "†‡" if found and all(one in marks for marks in found))
        rows = []
        for labels, row in lines:
            own = "".join(one for one in self.mark(row) if one not in common)
            rows.append([*labels, *(self.cell(row, column, own) for column in self.columns.values())])
        unlike = ", ".join(dict.fromkeys(one for row in measured for one in self.unlike(row)))
        other = f"; ‡ {unlike}" if unlike else ""
        nodes = ON_ONE_HOST if "†" in "".join(found) else ""
        return Table(
            f"{what}{common}.",
            f"{self.setup(any_row, measured)}{self.site.machines(measured)}{nodes}{other}." if any_row else "",
            ["Setup", "Total GPUs", *self.columns],
            rows,
            *notes,
        )

    def cell(self, row: Row | None, column: str, mark: str) -> Cell:
        """A figure of a training."""
        return cell(self.site, row, column, mark)

    def by_steps(self, last: Row | None, how: str) -> str:
        """The gain of steps alone, and how much of a training is none."""
        one, many = (figure(row, STEPPING) for row in (self.first, last))
        gain = f"By steps alone {self.site.ranks(self.world)}{how} give {many.over(one)}x"
        return f"{gain}: {outside_steps(last)}{self.marks([self.first, last])}."

    def noise(self, row: Row | None) -> str:
        """Words for a gain over one rank that its rounds do not decide, or whose two sides are of other machines."""
        words = ["within noise"] * figure(self.first, DEFAULT).within_noise(figure(row, DEFAULT))
        if ok(self.first) and ok(row) and self.site.machine(self.first) != self.site.machine(row):
            words.append("machines differ")
        return f" ({', '.join(words)})" if words else ""

    def fewer(self, trained: Callable[[int], Row | None]) -> str:
        """What fewer ranks than most give, where that is less than one of them gives."""
        one = figure(self.first, DEFAULT)
        rows = {n: trained(n) for n in self.counts if 1 < n < self.world}
        gains = [(n, figure(row, DEFAULT).over(one), self.noise(row)) for n, row in rows.items()]
        return "".join(f", {self.site.ranks(n)} {gain}x{noise}" for n, gain, noise in gains if gain.value < 1)

    def setup(self, row: Row, rows: Sequence[Row]) -> str:
        """What stands behind the title. row: of one rank, or any; rows: those that are ok."""
        return ""

    def mark(self, row: Row | None) -> str:
        """‡ and † of a row that is ok."""
        if not ok(row):
            return ""
        return several_nodes(self.site, row.get("nodes", "")) + "‡" * bool(self.unlike(row))

    def unlike(self, row: Row) -> list[str]:
        """What ‡ means: how it was trained otherwise than the homework has it; levels of preset cpu do not count."""
        return []

    def marks(self, rows: Sequence[Row | None]) -> str:
        """The marks of these rows together."""
        return "".join(sorted({one for row in rows for one in self.mark(row)}))

    def parts(self) -> Iterator[Part]:
        """By nodes, one rank on each; what most of them give."""
        trained = {
            int(row["nodes"]) for row in self.site.rows(self.table) if ok(row) and row["nodes"] == row["world_size"]
        }
        lines: list[Line] = [
            ([f"{nodes} Node" if nodes > 1 else self.one.format(self.site.rank), nodes],
             given(self.site, self.table, nodes, nodes=str(nodes)))
            for nodes in sorted({1, 2, 4, *[8] * self.site.gpu, *trained})
        ]  # fmt: skip
        yield self.scaling(f"{self.what} by number of nodes", lines)
        measured = [row for _, row in lines if ok(row)]
        if len(measured) > 1:
            one, last = measured[0], measured[-1]
            gain = f"{figure(last, DEFAULT).over(figure(one, DEFAULT))}x the samples/s of {self.alone}"
            yield Answer(f"{last['nodes']} nodes give {gain}{self.noise(last)}{self.marks([one, last])}.")


class OfBloom(Scaling):
    """BLOOM by ranks or nodes."""

    columns, what = BLOOM, "BLOOM fine-tuning"

    def cell(self, row: Row | None, column: str, mark: str) -> Cell:
        """A figure of a training; a scale factor no finer than what it is of."""
        of = {"samples_scale": DEFAULT, "runtime_scale": "train_runtime_s"}.get(column, column)
        scale = figure(row, of).of(figure(row, column).value, figure(self.first, of))
        return shown(scale, mark=mark) if scale and of != column else super().cell(row, column, mark)

    def setup(self, row: Row, rows: Sequence[Row]) -> str:
        """What stands behind the title."""
        model = entry(row, "model_name", "bloom-560m").split("/")[-1]
        memory = "; memory: mean of all in use, not torch's peak" if self.site.gpu else ""
        scales = "scale factors: against the first measured of the same wrapping"
        if ok(self.first):
            scales = f"{SCALES}, against {self.alone}"
        return f"{model}{weights(row)}, {trained(row, rows)}; {scales}; {LOSS}{memory}"

    def unlike(self, row: Row) -> list[str]:
        """In epochs; tuned, in more."""
        if row["loop"] == "tuned":
            return [f"tuned: {compiled(row)}, {row['step_ms_n']} steps timed alone, against one GPU, tuned"]
        apart = self.site.gpu and row["num_epochs"] != "5"
        return ["one epoch without checkpoints in place of 5 with"] if apart else []


class MultiGpu(OfBloom):
    """BLOOM on the GPUs of one machine."""

    heading = "Multi-GPU Fine-Tuning with FSDP"
    details = ("fsdp.multi_gpu", "fsdp.step")
    figure = "fsdp.multi_gpu"
    WAYS = {  # noqa: RUF012
        "as given": {"wrapped_by": "FSDP1", "loop": "trainer"},
        "wrapped per block": {"wrapped_by": "FSDP2", "loop": "trainer"},
        "tuned": {"loop": "tuned"},
    }

    def parts(self) -> Iterator[Part]:
        """By ranks and way to wrap; what most ranks give, in samples/s and in memory."""
        site = self.site
        yield self.scaling(f"{self.what} by number of {site.ranks_are}", self.lines())
        yield Detail(same_step(site))
        yield Detail(self.again())
        rows = {how: row for how in (self.WAYS if site.gpu else ("",)) if ok(row := self.of(self.world, how))}
        if self.world == 1 or not rows:
            return
        one = figure(self.first, DEFAULT)
        gains = [(how, figure(row, DEFAULT).over(one), self.noise(row)) for how, row in rows.items()]
        (how, gain, noise), *others = gains
        on = self.site.ranks(self.world)
        way = f"{how.capitalize()}, " if how else ""
        rest = "".join(f"; {name} {on} give {other}x{unsure}" for name, other, unsure in others if name != "tuned")
        tuned = figure(self.of(self.world, "tuned"), STEPPING).over(figure(self.of(1, "tuned"), STEPPING))
        yield Answer(
            f"{way}{on} give {gain}x the samples/s of {self.alone}{noise}{self.fewer(lambda n: self.of(n, how))}"
            f"{rest}{f'; tuned, {tuned}x one tuned GPU' if tuned else ''}{self.marks([self.first, *rows.values()])}.",
        )
        if site.gpu:
            yield Answer(self.by_steps(rows[how], how and f" {how}"), self.waits(how))
            yield Answer(f"{way}{self.memory([self.first, *(self.of(n, how) for n in self.counts if n > 1)])}.")
        more = "".join(f", {name} {other}{unsure}" for name, other, unsure in others[:1])
        odd = self.marks([self.first, *[*rows.values()][:2]])
        yield Title(f"{way}{on} give {gain} times the samples/s of {self.alone}{noise}{more}{odd}")
        custom = CustomMultiGpu(self.site)
        kept = figure(custom.loop("tuned"), "efficiency") if custom.world > 1 else NO_FIGURE
        odd = self.marks([self.first, rows[how]])
        train = f"{way}{on} train BLOOM {gain}x as fast as {self.alone.replace(' GPU', '')}{noise}{odd}"
        yield Finding(5, "fsdp", f"{train}; the custom model, tuned (BF16), keeps {kept} % of linear‡.")

    def memory(self, rows: Sequence[Row | None]) -> str:
        """What trainings use, all of a GPU's and at its allocator's peak."""
        found = list(filter(ok, rows))
        used = [f"{figure(row, 'avg_mem_total_gb')} on {self.site.ranks(row['world_size'])}" for row in found]
        peaks = [f"{figure(row, 'peak_mem_alloc_gb')}" for row in found]
        return f"memory in use (GB) is {', '.join(used)}; torch's peak is {', '.join(peaks)}{self.marks(rows)}"

    def again(self) -> str:
        """The first row's training on one device, in the baseline."""
        same = {name: entry(self.first, name) for name in ("model_name", "dtype", "labels", "weights", "batch_size")}
        same |= {name: entry(self.first, name) for name in ("grad_acc", "max_length", "num_epochs")}
        row = self.site.row(NineRows.RUNS, rows=entry(self.first, "train_size"), **same)
        rates = f"{figure(row, 'train_samples_per_s')} samples/s, loss {figure(row, 'mean_train_loss')}"
        return f"Another run of the first row's settings, the baseline: {rates}."

    def waits(self, how: str) -> str:
        """What a step of the same wrapping computes, with as few rows a rank."""
        world = max(self.site.levels("fsdp.step", "world_size"), key=int, default="")
        wrapping = "none: one unit" if how == "as given" else "per block"
        row = next(filter(ok, self.site.rows("fsdp.step", world_size=world, wrapping=wrapping)), None)
        computing = figure(row, "traced_compute_ms").share(figure(row, "step_ms"))
        unit = "in one unit" if how == "as given" else how
        traced = f"With {entry(row, 'batch')} row per GPU a traced step's computing"
        return f"{traced} is {computing} % of an untraced step on {world} GPUs, {unit}."

    def lines(self) -> list[Line]:
        """Labels and the source's rows."""
        site, above_one = self.site, [n for n in self.counts if n > 1]
        lines: list[Line] = [([self.one.format(site.rank), 1], self.first)]
        if not site.gpu:
            return lines + [([site.ranks(n), n], self.of(n, "")) for n in above_one]
        for name, how in (("Single Node, {} GPUs", "as given"), ("{} GPUs, blocks wrapped", "wrapped per block")):
            lines += [([name.format(n), n], self.of(n, how)) for n in above_one]
        tuned: Line = ([f"{self.world} GPUs, tuned", self.world], self.of(self.world, "tuned"))
        return [*lines, tuned] if self.world > 1 else lines

    def cell(self, row: Row | None, column: str, mark: str) -> Cell:
        """A figure of a training; tuned, a few steps of one batch are timed, which have a rate alone."""
        if not ok(row) or row["loop"] != "tuned":
            return super().cell(row, column, mark)
        if column == "samples_scale":
            return shown(figure(row, STEPPING).over(figure(self.of(1, "tuned"), STEPPING)), mark=mark)
        columns = {DEFAULT: STEPPING, "avg_mem_total_gb": "avg_mem_total_gb"}
        return super().cell(row, columns[column], mark) if column in columns else NO_SUCH_THING

    def of(self, world: int, how: str) -> Row | None:
        """A training on several ranks."""
        return run(self.site, self.table, world, **self.WAYS.get(how, {}))


class MultiNode(OfBloom):
    """BLOOM on one rank of each of several nodes."""

    heading = "Multi-Node Fine-Tuning with FSDP"
    details = ("fsdp.multi_node",)
    one = "Single Node"


def parameters(row: Row | None, column: str = "parameters") -> str:
    """Of a model, in millions."""
    return f"{int(row[column]) / 1e6:.4g} M parameters" if ok(row) else ""


def losses(row: Row | None) -> str:
    """Which loss a table has, and the first that was logged: of one step, or the mean of a few."""
    first = figure(row, "first_loss")
    return f"{LOSS}, first logged in the first row {first}" if first else LOSS


def vocabulary(row: Row | None) -> str:
    """Of the custom model."""
    return f"vocabulary {int(row['vocab_size']):,}" if row and row.get("vocab_size") else ""


class OfCustom(Scaling):
    """The custom model by ranks or nodes."""

    columns, what = CUSTOM, "Custom model"
    accumulation = "4"

    def setup(self, row: Row, rows: Sequence[Row]) -> str:
        """What stands behind the title."""
        whose = "Trainer's" + " formula for the" * (row["loop"] != "trainer")
        sizes, epochs = f"{row['num_layers']} layers, d {row['hidden_size']}", so_many(row["num_epochs"], "epoch")
        sampled = SAMPLED * self.site.gpu
        return f"{sizes}, {trained(row, rows)}, {epochs}; {CLOCKS.format(whose)}{sampled}; {losses(row)}"

    def unlike(self, row: Row) -> list[str]:
        """In parameters, accumulation and units."""
        said = []
        if row["parameters"] != row["source_parameters"]:
            asked = parameters(row, "source_parameters").removesuffix(" parameters")
            said.append(f"{vocabulary(row)} and {parameters(row)} in place of 250,680 and {asked}")
        if row["grad_acc"] != self.accumulation:
            said.append(f"accumulation {row['grad_acc']} in place of {self.accumulation}")
        if row["wrapped_by"] == "FSDP2":
            said.append("layers wrapped (FSDP2) in place of one unit (FSDP1)")
        return said if self.site.gpu else []


class CustomMultiGpu(OfCustom):
    """The custom model on the GPUs of one machine."""

    heading = "Custom Model Fine-Tuning (Multi-GPU with FSDP)"
    details = ("fsdp.custom_multi_gpu", "fsdp.custom_loops")
    figure = "fsdp.custom_scaling"
    _, LOOPS = details
    accumulation = "1"

    def parts(self) -> Iterator[Part]:
        """By ranks, as the scripts build it; our loops beside it; two ways to tell rate and memory."""
        site = self.site
        names = {n: f"Single Node, {site.ranks(n)}" if n > 1 else self.one.format(site.rank) for n in self.counts}
        lines: list[Line] = [([name, n], given(site, self.table, n)) for n, name in names.items()]
        yield self.scaling(f"{self.what} by number of {site.ranks_are}", lines, *(self.ours() if site.gpu else ()))
        first, last = self.first, given(site, self.table, self.world)
        odd = self.marks([first, last])
        if self.world > 1:
            yield from self.scaled(first, last, odd)
        default, callback = figure(last, DEFAULT), figure(last, RATE)
        rest, peak = (figure(last, one) for one in ("avg_mem_alloc_gb", "peak_mem_alloc_gb"))
        counts_more = entry(last, "loop") == "trainer" and default.value <= 0.98 * callback.value
        yield Answer(
            f"On {site.ranks(self.world)} the Default rate is {default} samples/s, the Callback rate {callback}{odd}.",
            f"Callback memory is {rest} GB between steps; the peak is {peak} GB{odd}." * (rest.value < peak.value),
            Why("The Callback's clock ends before the last evaluation and checkpoint.", counts_more),
        )

    def scaled(self, first: Row | None, last: Row | None, odd: str) -> Iterator[Part]:
        """What most ranks give."""
        site, gpu, on = self.site, self.site.gpu, self.site.ranks(self.world)
        gain = figure(last, DEFAULT).over(figure(first, DEFAULT))
        tuned, one = (figure(self.loop("tuned", n), STEPPING) for n in (self.world, 1))
        loop = self.fewer(lambda n: given(site, self.table, n))
        loop += f"{odd}; our tuned loop, by steps alone, gives {tuned.over(one)}x its rate on one‡" if gpu else ""
        how = " as given" * (not self.mark(last))
        yield Answer(
            f"{on} give {gain}x the samples/s of {self.alone}{self.noise(last)}{loop}.",
            self.by_steps(last, how) if gpu else "",
        )
        if gpu:
            as_given = f", {figure(self.loop('trainer'), 'efficiency')} %{how}" if how else ""
            kept = figure(self.loop("tuned"), "efficiency")
            yield Title(f"By steps alone {on} give {kept} % of linear scaling tuned in BF16‡{as_given}")
        else:
            kept = figure(self.loop("bare loop"), "efficiency")
            yield Title(f"By a bare loop's steps, {on} give {kept} % of linear scaling from one without FSDP")

    def loop(self, loop: str, world: int = 0) -> Row | None:
        """A loop of ours on so many ranks, or on most."""
        return run(self.site, self.LOOPS, world or self.world, loop=loop)

    def ours(self) -> tuple[str, str]:
        """The lines of our loops."""
        rate, model = STEPPING, self.first
        by_trainer = {world: figure(self.loop("trainer", world), rate) for world in self.counts}
        steps = ", ".join(f"{one} on {self.site.ranks(world)}" for world, one in by_trainer.items() if one)
        tuned = self.site.largest(self.LOOPS, rate, "world_size", loop="tuned")
        world = entry(tuned, "world_size")
        gives = f"{figure(tuned, rate)} samples/s on {self.site.ranks(world)}"
        kept = "" if world == "1" else f", {figure(tuned, 'efficiency')} % of linear"
        return (
            f"Samples/s of the same runs by steps alone: {steps or NO_FIGURE}.",
            f"‡ Our tuned loop ({compiled(tuned)}; {vocabulary(model)}, {parameters(model)}): {gives}{kept}.",
        )


class CustomMultiNode(OfCustom):
    """The custom model on one rank of each of several nodes."""

    heading = "Multi-Node Fine-Tuning with FSDP (Custom Model)"
    details = ("fsdp.custom_multi_node",)


class LinkTest(Problem):
    """All-reduce before training."""

    heading = "NCCL Bandwidth Test (before training)"
    details = ("fsdp.preflight",)

    def parts(self) -> Iterator[Part]:
        """By processes and nodes; on a CPU of one size. On most processes of one node."""
        site, gpu = self.site, self.site.gpu
        worlds = site.swept(self.table, "world_size", "248", "234", on_nodes="1")
        tested = site.rows(self.table, status="ok", backend="nccl" if gpu else "gloo")
        pairs = {(int(world), 1) for world in worlds} | {(2, 2)} | ({(4, 4), (8, 8)} if gpu else set())
        pairs |= {(int(row["world_size"]), int(row["on_nodes"])) for row in tested}
        size = site.swept(self.table, "size_mib", (), ["16"], backend="gloo")
        levels = {"backend": "nccl"} if gpu else {"backend": "gloo", "size_mib": size[-1]}
        found = {
            pair: site.row(self.table, world_size=pair[0], on_nodes=pair[1], **levels)
            for pair in sorted(pairs, key=lambda pair: pair[::-1])
        }
        own = next(filter(ok, site.rows(self.table, **levels)), None)
        size = levels.get("size_mib") or entry(own, "size_mib", "4096")
        calls = f"{entry(own, 'calls')} calls, " if entry(own, "calls") else ""
        nodes = ON_ONE_HOST if any(several_nodes(site, n) for (_, n), row in found.items() if ok(row)) else ""
        on = site.machines(filter(ok, found.values()))
        yield Table(
            "All-reduce before training, bus bandwidth.",
            f"{'NCCL, its own algorithm (003 forces Tree)' if gpu else 'Gloo'}, {size} MiB, {calls}"
            f"{rounds(*found.values())}, host clock with synchronise{on}{nodes}.",
            ["Processes", "Nodes", "Measured AllReduce BW (GB/s)", "Threshold (GB/s)", "Exit code"],
            [
                [
                    *pair,
                    as_cell(row, "busbw_gb_per_s", mark=several_nodes(site, pair[1])),
                    *(
                        Cell(entry(row, one)) if ok(row) else as_cell(row, one)
                        for one in ("threshold_gb_per_s", "exit_code")
                    ),
                ]
                for pair, row in found.items()
            ],
        )
        within = [(world, row) for (world, nodes), row in found.items() if nodes == 1 and ok(row)]
        if within:
            world, row = within[-1]
            yield Answer(f"{site.ranks(world)} all-reduce at {figure(row, 'busbw_gb_per_s')} GB/s.")


class WeakScaling(Problem):
    """More layers on more ranks."""

    heading = "Weak Scaling Experiment with FSDP (Custom Model)"
    details = ("fsdp.weak_setup", "fsdp.weak_scaling")
    figure = "fsdp.weak_scaling"
    SETUP, TABLE = details
    COLUMNS = (RATE, "avg_mem_alloc_gb", "gpu_util_percent", "train_loss", "train_runtime_s")
    LEVELS = (("2", "3", "8"), ("4", "6", "4"), ("8", "12", "2"), ("16", "24", "1"))

    def _prepare(self, site: Site) -> None:
        self.plans = {row["world_size"]: row for row in site.rows(self.SETUP, variant="source")}
        own = [(world, row["num_layers"], row["batch_size"]) for world, row in self.plans.items()]
        # Ranks, layers, batch.
        self.levels = self.LEVELS if site.gpu else own
        self.found = {world: run(site, self.TABLE, world, variant="source") for world, *_ in self.levels}
        rows = list(self.found.values())
        trainings = list(filter(ok, rows))
        # The baseline is the first level's row.
        self.first = rows[0] if rows and ok(rows[0]) else None
        self.last = trainings[-1] if len(trainings) > 1 else None
        self.on = site.ranks(entry(self.last, "world_size"))
        first_ms, last_ms = (figure(row, "step_ms") for row in (self.first, self.last))
        self.efficiency, self.by_formula = first_ms.share(last_ms), last_ms.share(first_ms)
        # The model is not the one that the scripts build.
        built = [row["total_params"] == entry(self.plans.get(row["world_size"]), "ran_parameters") for row in trainings]
        self.mark = "‡" * (site.gpu and not all(built))

    def parts(self) -> Iterator[Part]:
        """What was asked and what ran; efficiency, by its own formula and by the workshop's."""
        if self.site.gpu:
            yield Table(
                "Set-up in the text and as the scripts ran it.",
                "Computed.",
                ["GPUs", "Per-GPU Batch Size", "Number of Layers", "batch that ran", "parameters that ran (M)"],
                [[world, batch, layers, *self.as_run(self.plans.get(world))] for world, layers, batch in self.levels],
            )
        runtimes = [figure(row, "train_runtime_s") for row in (self.last, self.first)]
        yield Table(
            f"Weak scaling of the custom model{self.mark}.",
            self.setup(),
            ["GPUs", "Num Layers", "Per-GPU Batch", "Total Params", "Samples/s (Callback)", "GPU Memory (GB, Callback)",
             "GPU Utilization (%)", "Loss", "Runtime (s)", "Efficiency (%)"],
            [[*levels, *self.row(self.found[levels[0]])] for levels in self.levels],
            f"By the workshop's formula, current over baseline: {self.by_formula} % by step time, "
            f"{runtimes[0].share(runtimes[1])} % by runtime{self.mark}.",
        )  # fmt: skip
        steps = [figure(row, "step_ms") for row in (self.last, self.first)]
        # With the vocabulary that was trained.
        plans = [self.plans.get(entry(row, "world_size")) for row in (self.last, self.first)]
        trained = (
            "asked_tflop" if entry(self.last, "total_params") == entry(plans[0], "ran_parameters") else "tflop_per_gpu"
        )
        work = figure(plans[0], trained).share(figure(plans[1], trained))
        kept = f"Efficiency by step time is {self.efficiency} % on {self.on}"
        same_model = run(self.site, self.TABLE, entry(self.last, "world_size"), variant="same model")
        equal = steps[1].share(figure(same_model, "step_ms"))
        yield Answer(
            f"{kept}: a step takes {steps[0]} ms, the first row's {steps[1]}{self.mark}.",
            f"The first row's model and batch give {equal} %{self.mark}.",
            f"On {self.on} {outside_steps(self.last)}{self.mark}.",
            f"The work per {self.site.rank} is {work} % of the first row's{self.mark}.",
            Why("The head does not grow with the layers.", work.value < 99.5),
        )
        yield Title(f"{kept}{self.mark}")
        same = f"by the text's formula the same steps give {self.by_formula} %{self.mark}"
        yield Finding(15, "fsdp", f"Weak-scaling efficiency is {self.efficiency} % on {self.on}; {same}.")

    def as_run(self, plan: Row | None) -> list[Cell]:
        """Batch and parameters of the scripts."""
        parameters = figure(plan, "ran_parameters")
        return [Cell("1"), Cell(f"{parameters.value / 1e6:.1f}")] if parameters else [NOT_MEASURED, NOT_MEASURED]

    def row(self, row: Row | None) -> Entries:
        """Figures of a training."""
        parameters = figure(row, "total_params")
        kept = figure(self.first, "step_ms").share(figure(row, "step_ms"))
        efficiency = Cell(str(kept)) if kept else as_cell(row, "efficiency")
        return [
            Cell(f"{parameters.value:,.0f}") if parameters else as_cell(row, "total_params"),
            *(cell(self.site, row, column) for column in self.COLUMNS),
            Cell("100% (baseline)") if ok(row) and row is self.first else efficiency,
        ]

    def setup(self) -> str:
        """What stands behind the title."""
        if self.first is None:
            return "Not measured here."
        row, other, turns = self.first, "", rounds(*self.found.values())
        plan = self.plans.get(row.get("world_size", ""))
        if self.mark and plan:
            other = f"; ‡ {parameters(row, 'total_params')} in place of {parameters(plan, 'ran_parameters')}"
        sizes = f"d {row['hidden_size']}, {vocabulary(row)}, {workload(row, 'batch_size')}"
        epochs = so_many(row["num_epochs"], "epoch")
        clock = "Trainer's clock" if row.get("loop", "trainer") == "trainer" else "host clock"
        alone = ", the first row without FSDP" if row.get("wrapped_by") == "none" else ""
        return (
            f"{sizes}, {epochs}, {turns}, {clock}{SAMPLED * self.site.gpu}; {losses(row)}; efficiency T(first)/T(row) "
            f"by median steps, host clock, without the first step{alone}"
            f"{self.site.machines(filter(ok, self.found.values()))}{other}."
        )


class Defects(Problem):
    """What the workshop's scripts do otherwise than its text."""

    heading = "What the scripts do otherwise than the text"

    def parts(self) -> Iterator[Part]:
        """Each defect with what the site's tables show of it, or a link.

        Where a site's figures do not show it, the text of what was seen is empty.
        """
        with open(DEFECTS, newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        found = self.of_labels() | self.of_problems() | self.of_weak_scaling()
        seen = []
        for name in (row["finding"] for row in rows):
            link = f"[{Path(name).stem}](../../{name})" if name.endswith(".md") else ""
            text = link or found[name.removeprefix("fsdp.")]
            seen.append(word(said(text)) if text else NO_SUCH_THING)
        yield Table(
            "Where the scripts differ from the text.",
            "Seen here: figures of this report's tables, or computed.",
            ["#", "what", "seen here"],
            [[row["number"], row["defect"], cell] for row, cell in zip(rows, seen, strict=True)],
        )

    def of_weak_scaling(self) -> dict[str, str]:
        """Defects 1 to 5: its formula, and what it holds constant."""
        weak = WeakScaling(self.site)
        planned = list(filter(ok, weak.plans.values()))
        first, last = next(iter(planned), None), [None, *planned[1:]][-1]
        times = figure(first, "ran_steps").over(figure(first, "steps_per_epoch"))
        few = self.site.ranks(entry(first, "world_size"))
        on = f"on {entry(last, 'world_size')} as on {few}"
        # On a CPU the vocabulary is not the workshop's: the work is that of the answer.
        asked = "asked_tflop" if self.site.gpu else "tflop_per_gpu"
        ratios = [figure(last, one).over(figure(first, one)) for one in ("ran_tflop", asked, "ran_parameters")]
        ran, asked, larger = (unless(1, ratio, f"{ratio} times as large {on}.") for ratio in ratios)
        return {
            "defect_inverted": f"On {weak.on} the formula gives {weak.by_formula} % by step time{weak.mark}.",
            "defect_batches": f"On {few} an epoch has {times} times the steps.",
            "defect_neither": ran and f"A {self.site.rank}'s step is {ran}",
            "defect_work": asked and f"It is {asked}",
            "defect_doubling": larger and f"It is {larger}",
        }

    def of_labels(self) -> dict[str, str]:
        """Defects 6 to 8: what the labels train."""
        source, prompt = (self.site.row("fsdp.labels", way=way) for way in ("source", "source_prompt"))
        read, copied = (figure(row, "targets_read").share(figure(row, "targets")) for row in (source, prompt))
        rows, length = (replace(figure(source, name), exact=True) for name in ("train_size", "max_length"))
        lost = rows.value - figure(source, "rows_with_marker").value
        lose = "loses" if lost == 1 else "lose"
        return {
            "labels_answer": f"{read} % of the targets are in the input at the same position.",
            "labels_truncation": f"{lost:.0f} of {rows} prompts {lose} “Answer:” at {length} tokens.",
            "labels_copying": f"{copied} % of the targets are the input itself.",
        }

    def of_problems(self) -> dict[str, str]:
        """The others."""
        site, baseline, one, strategies = self.site, Baseline(self.site), WorldOfOne(self.site), Strategies(self.site)
        single = CustomSingleNode(site)
        copying = figure(single.least("source"), "eval_loss")
        # Of the single node's script and of the others, both with the tokenizer's vocabulary.
        shapes = SimpleGptShape(VOCABULARY, 1024, 1, 8, 8192, tied=False), SimpleGptShape(VOCABULARY)
        alone, several = (Figure(shape.parameters) for shape in shapes)
        answers = (site.rows(f"fsdp.{one}_answers", status="ok") for one in ("baseline", "custom_single_node"))
        scored = figure(next(chain(*answers), None), "identical_workshop_f1_percent")
        full, plain = (figure(one.found(setup), "peak_allocated_gib") for setup in ("FSDP1 FULL_SHARD", "without FSDP"))
        half, whole = (figure(strategies.found(name), "state_gib") for name in ("SHARD_GRAD_OP", "DDP"))
        kept = half.share(whole)
        levels = {"api": "FSDP1", "offload": "yes", "exchange": "with each micro-batch"}
        norm = site.value("fsdp.offload_accumulation", "norm_ratio", **levels).percent()
        least = f"Here evaluation loss is lowest after epoch {baseline.at_least()}, in the sample after epoch 1."
        return {
            "custom_copying": f"Evaluation loss falls to {copying} with its labels{single.mark}.",
            "custom_shapes": f"The model has {alone.share(several)} % of the other rows' parameters.",
            "scores": unless(100, scored, f"Answers equal to the reference score {scored} % F1."),
            "world_of_one": f"As NO_SHARD it needs {full.share(plain)} % of the memory without FSDP{one.mark}.",
            "sharding_words": unless(100, kept, f"SHARD_GRAD_OP keeps {kept} % of DDP's state per rank."),
            "offload": unless(100, norm, f"FSDP1's summed gradients have {norm} % of their norm."),
            "baseline_losses": "" if baseline.least() in baseline.epochs()[-1:] else least,
        }


def unless(plain: float, found: Figure, text: str) -> str:
    """The text, but nothing where the figure rounds to what would be without the defect."""
    return "" if found.quoted == Figure(plain).quoted else text


PROBLEMS = (
    Baseline,
    WorldOfOne,
    Strategies,
    MultiGpu,
    MultiNode,
    CustomSingleNode,
    CustomMultiGpu,
    LinkTest,
    CustomMultiNode,
    WeakScaling,
    Defects,
)
