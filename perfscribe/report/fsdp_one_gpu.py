"""The FSDP workshop: trainings on one GPU, and steps by sharding strategy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from perfscribe.report.cells import NO_SUCH_THING, Cell, as_cell, shown, word
from perfscribe.report.fsdp_rows import cell, rounds, same_step, weights, workload
from perfscribe.report.problem import Answer, Detail, Finding, Part, Problem, Table, Title, Why
from perfscribe.report.site import Row, Site, entry, figure, ok, so_many
from perfscribe.show.rounding import NO_FIGURE, Figure


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
