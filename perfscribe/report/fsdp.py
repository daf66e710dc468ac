"""The FSDP workshop: trainings of BLOOM and of its custom model on one GPU, on several, and on several nodes."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

from perfscribe.report.problem import Answer, Problem, Table
from perfscribe.report.site import (
    NO_SUCH_THING,
    NOT_MEASURED,
    Cell,
    Missing,
    Row,
    Site,
    as_cell,
    known,
    label,
    of,
    some,
    word,
)
from perfscribe.show.rounding import GIB_AS_GB, MIB_AS_MB, Figure

TITLE = "FSDP workshop"
DEFECTS = Path(__file__).resolve().parents[2] / "docs" / "defects.csv"
OF_GPUS = ("avg_mem_total_gb", "avg_mem_alloc_gb", "gpu_util_percent")  # columns that a CPU has not
IN_GIB = ("avg_mem_total_gb", "avg_mem_alloc_gb", "peak_mem_alloc_gb", "peak_allocated_gib", "state_gib")
DEFAULT, RATE = "train_samples_per_second", "samples_per_s_callback"
BLOOM_COLUMNS = (DEFAULT, "samples_scale", "train_runtime_s", "runtime_scale", "train_loss", "avg_mem_total_gb")
CUSTOM_COLUMNS = (DEFAULT, RATE, *OF_GPUS, "train_loss", "train_runtime_s")
BLOOM_HEADER = ["Setup", "Total GPUs", "Samples/s", "Samples/s Scale Factor", "Runtime (s)", "Runtime Scale Factor",
                "Loss", "GPU Memory Allocated (GB)"]  # fmt: skip
CUSTOM_HEADER = ["Setup", "Total GPUs", "Samples/s (Default)", "Samples/s (Callback)", "GPU Memory (GB, Default)",
                 "GPU Memory (GB, Callback)", "GPU Utilization (%)", "Loss", "Runtime (s)"]  # fmt: skip
TRAINED = ("fsdp.single_runs", "fsdp.multi_gpu", "fsdp.custom_multi_gpu")
RANDOM = "random"  # weights of a model that nobody trained before
SCALES = "scale factors: samples/s(N) / samples/s(1), runtime(1) / runtime(N)"
CLOCKS = "Default: Trainer's rate, all memory in use; Callback: its own rate, memory allocated at rest"
SINGLE = {
    "without FSDP": ("none", "no"),
    "FSDP1 FULL_SHARD": ("FSDP1", "no"),
    "FSDP2 FULL_SHARD": ("FSDP2", "no"),
    "FSDP2 FULL_SHARD, CPU off-load": ("FSDP2", "yes"),
    "DDP": ("DDP", "no"),
}

Line = tuple[list[Cell], Row | None]


def noun(site: Site) -> str:
    """What a rank runs on."""
    return "GPU" if site.gpu else "process"


def ranks(site: Site, number: int | str) -> str:
    """So many GPUs, or processes of a CPU."""
    plural = "s" if site.gpu else "es"
    return f"{number} {noun(site)}{'' if str(number) == '1' else plural}"


def counts(site: Site) -> Sequence[int]:
    """Ranks of the preset, or nodes."""
    return (1, 2, 4, 8) if site.gpu else (1, 2, 4)


def run(site: Site, table: str, world: int | str, **levels: str) -> Row | None:
    """A training on so many ranks; where there is none, what says why."""
    found = site.row(table, origin="measured", world_size=world, **levels)
    others = site.rows(table, origin="measured", world_size=world)
    return found or next((row for row in others if row["status"] != "ok"), None)


def given(site: Site, table: str, world: int, **levels: str) -> Row | None:
    """A training as the scripts have it, one unit of FSDP1, before others."""
    found = run(site, table, world, wrapped_by="FSDP1", **levels)
    return found if ok(found) else run(site, table, world, **levels)


def ok(row: Row | None) -> bool:
    """Whether it was measured."""
    return row is not None and row["status"] == "ok"


def most(site: Site, table: str, **levels: str) -> int:
    """Most ranks that were measured; Missing where only one was."""
    found = max((int(world) for world in site.levels(table, "world_size", **levels)), default=1)
    if found == 1:
        raise Missing(table)
    return found


def need(row: Row | None, column: str) -> Figure:
    """The figure of a row, memory in GB; Missing where there is none."""
    return known(row, column, GIB_AS_GB if column in IN_GIB else 1.0)


def cell(site: Site, row: Row | None, column: str, mark: str = "") -> Cell:
    """The same as a cell."""
    if column in OF_GPUS and not site.gpu:
        return NO_SUCH_THING
    return as_cell(row, column, GIB_AS_GB if column in IN_GIB else 1.0, mark=mark)


def several_nodes(site: Site, row: Row | None) -> str:
    """† on several nodes that are name spaces of one host, as far as the link test saw hosts."""
    hosts = max((len(set(one["nodes"].split(","))) for one in site.table("fsdp.preflight") if ok(one)), default=1)
    return "†" if ok(row) and row is not None and int(row.get("nodes") or 1) > hosts else ""


def marked(
    site: Site, lines: Sequence[Line], columns: Sequence[str], mark: Callable[[Row | None], str]
) -> tuple[str, list[list[Cell]]]:
    """The mark that all measured rows share, for the title, and the rows, with the others'."""
    found = [mark(row) for _, row in lines if ok(row)]
    common = "".join(one for one in "†‡" if found and all(one in marks for marks in found))
    rows = []
    for labels, row in lines:
        own = "".join(one for one in mark(row) if one not in common)
        rows.append([*labels, *(cell(site, row, column, own) for column in columns)])
    return common, rows


def rounds(row: Row | None) -> str:
    """How often it was trained."""
    number = (row or {}).get("rounds")
    return f"median ± half the range of {number} rounds" if number else "one run each"


def trained(site: Site, row: Row | None) -> str:
    """Precision, batch and so on of a training."""
    if row is None:
        return rounds(row)
    batch = f"{row['dtype'].upper()}, batch {row['batch_size']}, accumulation {row['grad_acc']}"
    clock = "Trainer's clock" if row["loop"] == "trainer" else "host clock"
    rows = f", 512 tokens, {trained_rows(row)} rows" if site.gpu else ""
    return f"{batch}{rows}, {rounds(row)}, {clock}"


def trained_rows(row: Row) -> int:
    """Rows of an epoch."""
    steps = int(row["optimizer_steps"]) // int(row["num_epochs"])
    return steps * int(row["batch_size"]) * int(row["grad_acc"]) * int(row["world_size"])


def weights(row: Row | None) -> str:
    """That a model begins with random weights, where the run says so."""
    return ", random weights" if row is not None and row["weights"] == RANDOM else ""


def pace(rate: Figure, plain: Figure) -> str:
    """A rate in percent of another, or that noise hides the difference."""
    close = abs(rate.value - plain.value) <= (rate.spread or 0.0) + (plain.spread or 0.0)
    return "the same speed within noise" if close else f"{rate.share(plain).quoted} % of the speed"


class NineRows(Problem):
    """A training on one device with the nine rows of the workshop's result tables."""

    table = what = model = ""
    METRICS = ("Train Loss (Final)", "Eval Loss (Epoch 1)", "Eval Loss (Epoch 2)", "Eval Loss (Epoch 3)",
               "Training Speed (samples/sec)", "Evaluation Speed (samples/sec)", "Steps per Epoch",
               "Memory Allocated (MB)", "GPU Utilization (%)")  # fmt: skip

    def tables(self) -> list[Table]:
        """Its tables."""
        return [
            Table(
                f"{self.what}{self.mark()}.",
                self.setup(),
                ["Metric", "Log Location & Extraction", "Your Value", "scripts' labels"],
                [self.row(metric) for metric in self.METRICS],
                [Answer("", [self.later]).text(), *self.published()],
            )
        ]

    def metric(self, metric: str) -> Row | None:
        """A row of the source's table."""
        return self.site.row(self.table, metric=metric)

    def row(self, metric: str) -> list[Cell]:
        """A row of the hand-in's."""
        memory = metric == "Memory Allocated (MB)"
        found = self.metric(f"{metric}, peak" if memory else metric)
        values = [as_cell(found, labels, MIB_AS_MB if memory else 1.0) for labels in ("answer", "source")]
        if metric == "Steps per Epoch" and ok(found):
            values = [Cell(str(Figure(need(found, labels).value, exact=True))) for labels in ("answer", "source")]
        if metric == "GPU Utilization (%)" and not self.site.gpu:
            values = [NO_SUCH_THING, NO_SUCH_THING]
        return [label(metric), label((found or {}).get("where", "-")), *values]

    def rows_trained(self) -> dict[str, Figure]:
        """By whose labels."""
        found = self.metric("Rows trained")
        return {labels: Figure(one.value, exact=True) for labels in ("answer", "source") if (one := of(found, labels))}

    def mark(self) -> str:
        """‡ where the scripts' labels trained fewer rows."""
        return "‡" if self.site.gpu and len({one.value for one in self.rows_trained().values()}) > 1 else ""

    def setup(self) -> str:
        """What stands behind the title."""
        found, rows = self.metric(self.METRICS[0]), self.rows_trained()
        count = f"{rows['answer'].quoted} rows, " if rows else ""
        other = f"; ‡ {rows['source'].quoted} rows by the scripts' labels, no checkpoints" if self.mark() else ""
        where = "one GPU" if self.site.gpu else "CPU"
        return (
            f"{self.model_name()}, {(found or {}).get('dtype', 'fp16').upper()}, {count}5 epochs, {where}, "
            f"{rounds(found)}; Your Value: labels that train the answer; train loss: mean over all steps; "
            f"memory: peak{other}."
        )

    def model_name(self) -> str:
        """As the set-up names the model."""
        found = self.metric(self.METRICS[0])
        name = (found or {}).get("model_name", self.model).split("/")[-1]
        if not name.startswith("bloom"):
            return name
        row = self.site.row("fsdp.single_runs", model_name=(found or {}).get("model_name"))
        return name + weights(row)

    def epochs(self, labels: str = "answer") -> list[Row]:
        """Losses after each epoch."""
        found = [row for row in self.site.rows(f"{self.table}_losses", labels=labels) if ok(row)]
        if len(found) < 2:
            raise Missing(self.table)
        return found

    def least(self, labels: str = "answer") -> Row:
        """The epoch after which evaluation loss is least."""
        return min(self.epochs(labels), key=lambda row: need(row, "eval_loss").value)

    def memory(self, moment: str) -> Figure:
        """In MB."""
        found = of(self.metric(f"Memory Allocated (MB), {moment}"), "answer", MIB_AS_MB)
        if found is None:
            raise Missing(moment)
        return found

    def gigabytes(self, moment: str) -> str:
        """The same in GB."""
        return Figure(self.memory(moment).value / 1000).quoted

    def later(self) -> str:
        """The line below the table."""
        losses = ", ".join(need(row, "eval_loss").quoted for row in self.epochs()[3:])
        row = self.site.row(f"{self.table}_answers", labels="answer", training="after")
        exact, overlap = (need(row, f"{score}_percent").quoted for score in ("exact_match", "f1"))
        return (
            f"Epochs 4, 5: evaluation loss {losses}; at rest {self.memory('at rest').quoted} MB; "
            f"EM / F1 after training {exact} / {overlap} %{self.mark()}."
        )

    def published(self) -> Sequence[str]:
        """Lines of figures of the sources."""
        return ()


class Baseline(NineRows):
    """BLOOM on one device."""

    name = "fsdp_baseline_bloom_fine_tuning_without_fsdp"
    heading = "Baseline: BLOOM Fine-tuning without FSDP"
    details = ("fsdp.labels", "fsdp.baseline", "fsdp.baseline_losses", "fsdp.baseline_answers", "fsdp.single_runs")
    figure = "fsdp.baseline_losses"
    table, what, model = "fsdp.baseline", "BLOOM fine-tuning on one device", "bloom-560m"

    def answers(self) -> list[Answer]:
        """What is said."""
        return [Answer("", [self.shares]), Answer("", [self.peak]), Answer("", [self.losses])]

    def title(self) -> str:
        """What the figure shows."""
        last = need(self.epochs()[-1], "train_loss").quoted
        return f"Evaluation loss is least after epoch {self.at_least()}, training loss falls to {last}{self.mark()}"

    def published(self) -> Sequence[str]:
        """The log sample."""
        return (
            "Published: 003, log sample of other settings (1,500 rows, 3 epochs): eval loss 1.2965, 1.5810, 1.7790; "
            "11.971 samples/s.",
        )

    def at_least(self) -> str:
        """The epoch of the least evaluation loss."""
        return f"{float(self.least()['epoch']):.0f}"

    def shares(self) -> str:
        """What evaluation, and checkpoints where they are timed, take of a training."""
        model = (self.metric(self.METRICS[0]) or {}).get("model_name", "")
        whole = need(self.site.row("fsdp.single_runs", model_name=model, labels="answer"), "train_runtime_s")
        epochs = self.epochs()
        saved = all(of(row, "save_s") for row in epochs)
        parts = ("eval_runtime_s", "save_s") if saved else ("eval_runtime_s",)
        beside = sum(need(row, part).value for row in epochs for part in parts)
        share = whole.of(100 * beside / whole.value).quoted
        named = "are evaluation and checkpoints" if saved else "is evaluation"
        return f"Training takes {whole.quoted} s, of which {share} % {named}{self.mark()}."

    def peak(self) -> str:
        """Memory while training and at rest."""
        return f"Memory peaks at {self.gigabytes('peak')} GB and is {self.gigabytes('at rest')} at rest{self.mark()}."

    def losses(self) -> str:
        """Where further epochs do not help."""
        last = self.epochs()[-1]
        after, training = need(last, "eval_loss").quoted, need(last, "train_loss").quoted
        if self.least() is last:
            return f"Evaluation loss falls to {after} after five epochs, when training loss is {training}{self.mark()}."
        least = need(self.least(), "eval_loss").quoted
        return (
            f"Evaluation loss is least after epoch {self.at_least()}, {least}, and {after} after five, "
            f"when the last steps' training loss is {training}{self.mark()}."
        )


class CustomSingleNode(NineRows):
    """The custom model on one device."""

    name = "fsdp_custom_model_fine_tuning_single_node"
    heading = "Custom Model Fine-Tuning (Single Node)"
    details = (
        "fsdp.custom_shapes",
        "fsdp.custom_single_node",
        "fsdp.custom_single_node_losses",
        "fsdp.custom_single_node_answers",
    )
    figure = "fsdp.custom_single_node_losses"
    table, what = "fsdp.custom_single_node", "Custom model on one device"
    model = "SimpleGPTModel"

    def answers(self) -> list[Answer]:
        """What is said."""
        return [Answer("", [self.losses, self.peak, self.why])]

    def title(self) -> str:
        """What the figure shows."""
        theirs, ours = (need(self.least(labels), "eval_loss").quoted for labels in ("source", "answer"))
        return f"Evaluation loss falls to {theirs} with the scripts' labels, to {ours} with answer labels"

    def model_name(self) -> str:
        """As the set-up names the model."""
        if self.site.gpu:
            return "1 layer, d 1024, vocabulary 250,680, 534.6 M parameters"
        return super().model_name()

    def losses(self) -> str:
        """With the labels of the scripts and with ours."""
        theirs, ours = (need(self.least(labels), "eval_loss").quoted for labels in ("source", "answer"))
        return f"With the scripts' labels evaluation loss falls to {theirs}, with answer labels to {ours}."

    def peak(self) -> str:
        """Memory while training."""
        return f"Memory peaks at {self.gigabytes('peak')} GB."

    def why(self) -> str:
        """Why the scripts' labels are easy."""
        row = self.site.row("fsdp.labels", way="source_prompt")
        if need(row, "targets_read").value < need(row, "targets").value:
            raise Missing("fsdp.labels")
        return "The scripts' labels are the input itself, so that the model learns to copy it."


class WorldOfOne(Problem):
    """FSDP where there is nothing to shard."""

    name = "fsdp_single_gpu_fsdp"
    heading = "Single-GPU FSDP"
    details = ("fsdp.world_of_one",)
    TABLE = "fsdp.world_of_one"

    def tables(self) -> list[Table]:
        """Its tables."""
        model = "bloom-560m" if self.site.gpu else "gpt-tiny"
        other = f"; ‡ {self.dtype().upper()} in place of FP16" if self.mark() else ""
        tokens = ", 512 tokens" if self.site.gpu else ""
        return [
            Table(
                f"One rank by strategy{self.mark()}.",
                f"{model}, {self.dtype().upper()}, batch 1{tokens}, median ± half IQR of steps, host clock with "
                f"synchronise; peak of allocated memory{other}.",
                ["Setup", "took effect as", "Samples/s", "Peak memory (GB)", "state on"],
                [self.row(setup) for setup in SINGLE],
            )
        ]

    def answers(self) -> list[Answer]:
        """What is said."""
        return [Answer("", [self.as_one, self.off_load])]

    def dtype(self) -> str:
        """The homework's where every set-up has it, else that of the most."""
        if not self.site.gpu:
            return "fp32"
        asked = all(ok(self.found(setup, "fp16")) for setup in SINGLE)
        return "fp16" if asked or not self.site.table(self.TABLE) else "bf16"

    def mark(self) -> str:
        """‡ where it is not the homework's."""
        return "‡" if self.dtype() == "bf16" else ""

    def found(self, setup: str, dtype: str = "") -> Row | None:
        """A row of the source."""
        model = "bigscience/bloom-560m" if self.site.gpu else "gpt-tiny"
        api, off_load = SINGLE[setup]
        strategy = {"none": "the model alone", "DDP": "DDP"}.get(api, "FULL_SHARD")
        return self.site.row(self.TABLE, model=model, api=api, strategy=strategy, offload=off_load,
                             checkpointing="no", dtype=dtype or self.dtype())  # fmt: skip

    def row(self, setup: str) -> list[Cell]:
        """A row of the hand-in's."""
        row = self.found(setup)
        words = [word(row[column]) if row is not None and ok(row) else NOT_MEASURED
                 for column in ("applied_strategy", "state_device")]  # fmt: skip
        return [
            label(setup),
            words[0],
            cell(self.site, row, "samples_per_s"),
            cell(self.site, row, "peak_allocated_gib"),
            words[1],
        ]

    def as_one(self) -> str:
        """What FSDP1 does with one rank."""
        row = self.found("FSDP1 FULL_SHARD")
        least, alone = (need(one, "peak_allocated_gib").quoted for one in (row, self.found("without FSDP")))
        applied = (row or {}).get("applied_strategy")
        return (
            f"FSDP1 on one {noun(self.site)} runs as {applied} and needs {least} GB, without FSDP {alone}{self.mark()}."
        )

    def off_load(self) -> str:
        """What off-load saves and costs."""
        row, plain = self.found("FSDP2 FULL_SHARD, CPU off-load"), self.found("FSDP2 FULL_SHARD")
        memory = need(row, "peak_allocated_gib").quoted
        speed = pace(need(row, "samples_per_s"), need(plain, "samples_per_s"))
        return f"With off-load FSDP2 needs {memory} GB and runs at {speed}{self.mark()}."


class Strategies(Problem):
    """Sharding strategies, off-load and checkpointing on most ranks."""

    name = "fsdp_sharding_strategies_off_loading"
    heading = "Sharding Strategies & Off-loading"
    details = ("fsdp.strategies", "fsdp.wrapping", "fsdp.offload_accumulation")
    figure = "fsdp.strategies"
    TABLE = "fsdp.strategies"
    COLUMNS = ("samples_per_s", "step_ms", "peak_allocated_gib", "state_gib", "sent_mb")
    GIVEN = "FULL_SHARD as given (one unit)"
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

    def tables(self) -> list[Table]:
        """Its tables."""
        tokens = ", 512 tokens" if self.site.gpu else ""
        other = f"; ‡ {self.dtype().upper()} in place of FP16" if self.mark() else ""
        nodes = (
            f"; † one machine's {ranks(self.site, self.world())} as two nodes" if ok(self.found(self.ROWS[3])) else ""
        )
        return [
            Table(
                f"Strategies on {ranks(self.site, self.world())}{self.mark()}.",
                f"{self.model().split('/')[-1]}, {self.dtype().upper()}, batch 1 per rank{tokens}, median ± half IQR "
                f"of steps, host clock with synchronise; peak of allocated memory; state per rank, "
                f"with off-load on the CPU{nodes}{other}.",
                ["Strategy", "CPU off-load", "Activation checkpointing", "Samples/s", "Step (ms)", "Peak memory (GB)",
                 "State per GPU (GB)", "Sent per step (MB)"],
                [
                    [*map(label, row), *(cell(self.site, self.found(row), one, self.emulated(row))
                                         for one in self.COLUMNS)]
                    for row in self.ROWS
                ],
            )
        ]  # fmt: skip

    def answers(self) -> list[Answer]:
        """What is said."""
        return [Answer("", [self.ends, self.costs, self.why])]

    def title(self) -> str:
        """What the figure shows."""
        fast, speed, _ = self.fastest()
        measured = f"Of the strategies measured in {self.dtype().upper()}"
        return f"{measured} {fast} is fastest, {speed.quoted} samples/s{self.mark()}"

    def model(self) -> str:
        """As the table names it."""
        return "bigscience/bloom-560m" if self.site.gpu else "gpt-tiny"

    def world(self) -> int:
        """Most ranks that were measured."""
        return max((int(one) for one in self.site.levels(self.TABLE, "world_size", model=self.model())), default=2)

    def dtype(self) -> str:
        """FP16 where it has the strategies, else BF16."""
        if not self.site.gpu:
            return "fp32"
        levels = {"world_size": self.world(), "strategy": "SHARD_GRAD_OP"}
        found = self.site.levels(self.TABLE, "dtype", **levels)
        return "fp16" if "fp16" in found or not found else "bf16"

    def mark(self) -> str:
        """‡ where it is not the homework's."""
        return "‡" if self.dtype() == "bf16" else ""

    @staticmethod
    def emulated(row: tuple[str, str, str]) -> str:
        """† where one machine's ranks stand for two nodes."""
        return "†" if row[0] == "HYBRID_SHARD" else ""

    def found(self, row: tuple[str, str, str]) -> Row | None:
        """A row of the source."""
        levels = {"model": self.model(), "world_size": self.world(), "dtype": self.dtype()}
        if row[0] == self.GIVEN:
            return self.site.row("fsdp.wrapping", api="FSDP1", wrapping="none: one unit", **levels)
        api = "DDP" if row[0] == "DDP" else "FSDP2"
        return self.site.row(self.TABLE, strategy=row[0], api=api, offload=row[1], checkpointing=row[2], **levels)

    def full(self, off_load: str, checkpointing: str, column: str) -> Figure:
        """A figure of FULL_SHARD."""
        return need(self.found(("FULL_SHARD", off_load, checkpointing)), column)

    def all(self, column: str) -> list[tuple[str, Figure]]:
        """Every strategy that has the figure, by name."""
        found = []
        for row in self.ROWS:
            extras = " and ".join(
                n for n, one in zip(("off-load", "checkpointing"), row[1:], strict=True) if one == "yes"
            )
            try:
                figure = need(self.found(row), column)
            except Missing:
                continue
            found.append((f"{row[0]}{self.emulated(row)}{f' with {extras}' if extras else ''}", figure))
        if len(found) < 2:
            raise Missing(column)
        return found

    def fastest(self) -> tuple[str, Figure, str]:
        """The fastest, its rate, and the next where noise could have it first."""
        (name, rate), (next_name, next_rate) = sorted(self.all("samples_per_s"), key=lambda one: -one[1].value)[:2]
        apart = rate.value - next_rate.value > (rate.spread or 0.0) + (next_rate.spread or 0.0)
        return name, rate, "" if apart else next_name

    def smallest(self) -> tuple[str, Figure]:
        """The one that needs least memory."""
        return min(some(self.all("peak_allocated_gib")), key=lambda one: one[1].value)

    def ends(self) -> str:
        """The fastest and the smallest."""
        (fast, speed, close), (small, memory) = self.fastest(), self.smallest()
        noise = f" ({close} within noise)" if close else ""
        return (
            f"{fast} is fastest, {speed.quoted} samples/s{noise}; {small} needs least memory, "
            f"{memory.quoted} GB{self.mark()}."
        )

    def costs(self) -> str:
        """What off-load and checkpointing save, and at what speed."""
        said = []
        for row in (("yes", "no"), ("no", "yes")):
            saved = self.full("no", "no", "peak_allocated_gib").value - self.full(*row, "peak_allocated_gib").value
            speed = pace(self.full(*row, "samples_per_s"), self.full("no", "no", "samples_per_s"))
            said.append((f"{Figure(saved).quoted} GB" if saved > 0 else "no memory", speed))
        (first, slow), (second, slower) = said
        slower = slower.removesuffix(" of the speed")
        return f"Off-load saves {first} and runs at {slow}, checkpointing {second} at {slower}{self.mark()}."

    def why(self) -> str:
        """What SHARD_GRAD_OP keeps; said where it holds as little as FULL_SHARD."""
        states = [
            need(self.found((one, "no", "no")), "state_gib").value for one in ("SHARD_GRAD_OP", "FULL_SHARD", "DDP")
        ]
        if not states[0] <= states[1] < states[2]:
            raise Missing("state_gib")
        return "SHARD_GRAD_OP's parameters are sharded outside the passes, not replicated."


class Scaling(Problem):
    """Trainings by ranks or nodes. unit: what a row has more of."""

    table = what = ""
    header: Sequence[str] = ()
    columns: Sequence[str] = ()

    def tables(self) -> list[Table]:
        """Its tables."""
        mark, rows = marked(self.site, self.lines(), self.columns, self.mark)
        marks = {one for _, row in self.lines() for one in self.mark(row)}
        other = f"; ‡ {self.other()}" if "‡" in marks else ""
        nodes = "; † nodes are name spaces of one host" if "†" in marks else ""
        return [Table(f"{self.what}{mark}.", f"{self.setup()}{nodes}{other}.", self.header, rows, self.notes())]

    def lines(self) -> list[Line]:
        """Labels and the source's row."""
        return []

    def first(self) -> Row | None:
        """The row of one rank."""
        return run(self.site, self.table, 1)

    def setup(self) -> str:
        """What stands behind the title."""
        return ""

    def other(self) -> str:
        """What ‡ means."""
        return ""

    def notes(self) -> list[str]:
        """Lines below the table."""
        return []

    def mark(self, row: Row | None) -> str:
        """‡ and † of a row."""
        return ""

    def node_lines(self, first: str) -> list[Line]:
        """One rank on each of several nodes."""
        return [
            ([label(first if nodes == 1 else f"{nodes} Node"), label(nodes)],
             given(self.site, self.table, nodes, nodes=str(nodes)))
            for nodes in counts(self.site)
        ]  # fmt: skip

    def gains(self) -> str:
        """What most nodes give."""
        measured = [row for _, row in self.node_lines("") if row is not None and ok(row)]
        if len(measured) < 2:
            raise Missing(self.table)
        ratio = need(measured[-1], DEFAULT).over(need(measured[0], DEFAULT)).quoted
        marks = "".join(sorted(set(self.mark(measured[0]) + self.mark(measured[-1]))))
        return f"{measured[-1]['nodes']} nodes give {ratio}x the samples/s of one{marks}."


class OfBloom(Scaling):
    """BLOOM by ranks or nodes."""

    header, columns = BLOOM_HEADER, BLOOM_COLUMNS

    def setup(self) -> str:
        """What stands behind the title."""
        row = self.first()
        model = (row or {}).get("model_name", "bloom-560m").split("/")[-1]
        return f"{model}{weights(row)}, {trained(self.site, row)}; {SCALES}"

    def other(self) -> str:
        """What ‡ means."""
        return "one epoch without checkpoints in place of 5 with"

    def mark(self, row: Row | None) -> str:
        """‡ and † of a row."""
        if row is None or not ok(row):
            return ""
        short = self.site.gpu and row["num_epochs"] != "5"
        return several_nodes(self.site, row) + ("‡" if short else "")


class MultiGpu(OfBloom):
    """BLOOM on the GPUs of one machine."""

    name = "fsdp_multi_gpu_fine_tuning_with_fsdp"
    heading = "Multi-GPU Fine-Tuning with FSDP"
    details = ("fsdp.multi_gpu",)
    figure = table = "fsdp.multi_gpu"

    def tables(self) -> list[Table]:
        """Its tables."""
        self.what = f"BLOOM fine-tuning by number of {'GPUs' if self.site.gpu else 'processes'}"
        return super().tables()

    def answers(self) -> list[Answer]:
        """What is said."""
        return [Answer("", [self.speeds, self.memory])]

    def title(self) -> str:
        """What the figure shows."""
        wrapped = {"wrapped per block": "with blocks wrapped"}
        (how, gain), *others = self.gained()
        first = f"{gain.quoted} times one {noun(self.site)}'s samples/s {wrapped.get(how, how)}".rstrip()
        more = "".join(f" and {other.quoted} {wrapped.get(name, name)}" for name, other in others[:1])
        return f"{ranks(self.site, self.world())} give {first}{more}{self.odd()}"

    def lines(self) -> list[Line]:
        """Labels and the source's rows."""
        site = self.site
        if not site.gpu:
            names = ["Single Node, Single process", *(ranks(site, n) for n in counts(site)[1:])]
            pairs = zip(names, counts(site), strict=True)
            return [([label(name), label(n)], run(site, self.table, n)) for name, n in pairs]
        lines: list[Line] = [([label("Single Node, Single GPU"), label(1)], self.first())]
        for name, how in (("Single Node, {} GPUs", "as given"), ("{} GPUs, blocks wrapped", "wrapped per block")):
            lines += [([label(name.format(n)), label(n)], self.of(n, how)) for n in counts(site)[1:]]
        try:
            world = self.world()
        except Missing:
            return lines
        return [*lines, ([label(f"{world} GPUs, tuned"), label(world)], self.of(world, "tuned"))]

    def of(self, world: int, how: str) -> Row | None:
        """A training on several ranks."""
        levels = {
            "as given": {"wrapped_by": "FSDP1", "loop": "trainer"},
            "wrapped per block": {"wrapped_by": "FSDP2", "loop": "trainer"},
            "tuned": {"loop": "tuned"},
        }.get(how, {})
        return run(self.site, self.table, world, **levels)

    def world(self) -> int:
        """Most ranks that were measured."""
        return most(self.site, self.table, origin="measured")

    def ways(self) -> Sequence[str]:
        """How it was trained on most ranks."""
        ways = ("as given", "wrapped per block", "tuned") if self.site.gpu else ("",)
        return [how for how in ways if ok(self.of(self.world(), how))]

    def gained(self) -> list[tuple[str, Figure]]:
        """Samples per second over one rank's, by way."""
        one = need(self.first(), DEFAULT)
        found = [(how, need(self.of(self.world(), how), DEFAULT).over(one)) for how in self.ways()]
        if not found:
            raise Missing(self.table)
        return found

    def odd(self) -> str:
        """The marks of one rank and of most."""
        rows = [self.first(), *(self.of(self.world(), how) for how in self.ways())]
        return "".join(sorted({one for row in rows for one in self.mark(row)}))

    def speeds(self) -> str:
        """What most ranks give."""
        (how, gain), *others = self.gained()
        way = f", {how}" if how == "wrapped per block" else f" {how}".rstrip()
        rest = "".join(f", {other.quoted}x {name}" for name, other in others)
        return f"{ranks(self.site, self.world())} give {gain.quoted}x the samples/s of one{way}{rest}{self.odd()}."

    def memory(self) -> str:
        """Per GPU, on one and on most."""
        last = self.of(self.world(), self.ways()[0])
        one, many = (need(row, "avg_mem_total_gb") for row in (self.first(), last))
        verb = "falls" if many.value < one.value else "grows"
        return f"Memory per GPU {verb} from {one.quoted} to {many.quoted} GB{self.odd()}."


class MultiNode(OfBloom):
    """BLOOM on one rank of each of several nodes."""

    name = "fsdp_multi_node_fine_tuning_with_fsdp"
    heading = "Multi-Node Fine-Tuning with FSDP"
    details = ("fsdp.multi_node",)
    table, what = "fsdp.multi_node", "BLOOM fine-tuning by number of nodes"

    def lines(self) -> list[Line]:
        """Labels and the source's rows."""
        return self.node_lines("Single Node")

    def answers(self) -> list[Answer]:
        """What is said."""
        return [Answer("", [self.gains])]


class OfCustom(Scaling):
    """The custom model by ranks or nodes."""

    header, columns = CUSTOM_HEADER, CUSTOM_COLUMNS
    accumulation = "4"

    def setup(self) -> str:
        """What stands behind the title."""
        row = self.first()
        if self.site.gpu:
            model = "3 layers, d 2048"
            epochs = f", {row['num_epochs']} epochs" if row else ""
        else:
            model = f"{(row or {}).get('parameters', '')} parameters"
            epochs = ""
        return f"{model}, {trained(self.site, row)}{epochs}; {CLOCKS}"

    def other(self) -> str:
        """What ‡ means."""
        rows = [row for _, row in self.lines() if row is not None and ok(row)]
        said = []
        if rows[0]["parameters"] != rows[0]["source_parameters"]:
            now, asked = (f"{need(rows[0], one).value / 1e6:.1f} M" for one in ("parameters", "source_parameters"))
            vocabulary = f"{int(rows[0]['vocab_size']):,}"
            said.append(f"vocabulary {vocabulary} and {now} parameters in place of 250,680 and {asked}")
        if rows[0]["grad_acc"] != self.accumulation:
            said.append(f"accumulation {rows[0]['grad_acc']} in place of {self.accumulation}")
        if any(row["wrapped_by"] == "FSDP2" for row in rows):
            said.append("layers wrapped (FSDP2) in place of one unit (FSDP1)")
        return ", ".join(said)

    def mark(self, row: Row | None) -> str:
        """‡ and † of a row."""
        if row is None or not ok(row):
            return ""
        as_built = row["parameters"] == row["source_parameters"] and row["grad_acc"] == self.accumulation
        other = self.site.gpu and (not as_built or row["wrapped_by"] == "FSDP2")
        return several_nodes(self.site, row) + ("‡" if other else "")


class CustomMultiGpu(OfCustom):
    """The custom model on the GPUs of one machine."""

    name = "fsdp_custom_model_fine_tuning_multi_gpu_with_fsdp"
    heading = "Custom Model Fine-Tuning (Multi-GPU with FSDP)"
    details = ("fsdp.custom_multi_gpu", "fsdp.custom_loops")
    figure = "fsdp.custom_scaling"
    table, loops = "fsdp.custom_multi_gpu", "fsdp.custom_loops"
    accumulation = "1"

    def tables(self) -> list[Table]:
        """Its tables."""
        self.what = f"Custom model by number of {'GPUs' if self.site.gpu else 'processes'}"
        return super().tables()

    def lines(self) -> list[Line]:
        """Labels and the source's rows."""
        one = noun(self.site)
        lines = []
        for n in counts(self.site):
            name = f"Single Node, Single {one}" if n == 1 else f"Single Node, {ranks(self.site, n)}"
            lines.append(([label(name), label(n)], given(self.site, self.table, n)))
        return lines

    def notes(self) -> list[str]:
        """The line of our loops."""
        return [Answer("", [self.ours]).text()] if self.site.gpu else []

    def answers(self) -> list[Answer]:
        """What is said."""
        return [Answer("", [self.speeds]), Answer("", [self.clocks, self.memory, self.why])]

    def title(self) -> str:
        """What the figure shows."""
        last, name = self.rows()[-1], "Tuned" if self.site.gpu else "In a bare loop"
        kept = need(self.loop("tuned" if self.site.gpu else "bare loop"), "efficiency")
        given = ""
        if self.site.gpu and not self.mark(last):
            share = need(last, DEFAULT).of(100 * self.gain().value / int(last["world_size"]))
            given = f"; as given {share.quoted} %"
        return f"{name}, {ranks(self.site, last['world_size'])} give {kept.quoted} % of linear{given}"

    def rows(self) -> list[Row]:
        """One rank and most."""
        found = [self.first(), given(self.site, self.table, most(self.site, self.table, origin="measured"))]
        return [row for row in found if row is not None]

    def loop(self, loop: str, world: int | str = 0) -> Row | None:
        """A loop of ours on so many ranks, or on most."""
        return run(self.site, self.loops, world or self.rows()[-1]["world_size"], loop=loop)

    def gain(self) -> Figure:
        """Samples per second as given, over one rank's."""
        first, last = self.rows()
        return need(last, DEFAULT).over(need(first, DEFAULT))

    def ours(self) -> str:
        """The line of our loops."""
        rate = "stepping_samples_per_second"
        wrapped, tuned = self.loop("trainer"), self.loop("tuned")
        if tuned is None:
            raise Missing(self.loops)
        how = f"{tuned['dtype'].upper()}, compiled, {tuned['batch']} rows per GPU"
        return (
            f"Steps alone, same runs: {ranks(self.site, self.rows()[-1]['world_size'])} "
            f"{need(wrapped, rate).quoted} samples/s; our tuned loop ({how}) {need(tuned, rate).quoted}, "
            f"{need(tuned, 'efficiency').quoted} % of linear."
        )

    def odd(self) -> str:
        """Marks of one rank and of most."""
        return "".join(sorted({one for row in self.rows() for one in self.mark(row)}))

    def speeds(self) -> str:
        """What most ranks give."""
        said = f"{ranks(self.site, self.rows()[-1]['world_size'])} give {self.gain().quoted}x the samples/s of one"
        if not self.site.gpu:
            return f"{said}."
        last, one = (need(self.loop("tuned", world), "stepping_samples_per_second") for world in (0, 1))
        return f"{said}{self.odd()}; our tuned loop gives {last.over(one).quoted}x."

    def clocks(self) -> str:
        """Two ways to tell the rate."""
        last = self.rows()[-1]
        return f"Default reads {need(last, DEFAULT).quoted} samples/s, callback {need(last, RATE).quoted}{self.odd()}."

    def memory(self) -> str:
        """Two ways to tell memory."""
        rest, peak = (need(self.rows()[-1], one) for one in ("avg_mem_alloc_gb", "peak_mem_alloc_gb"))
        if rest.value >= peak.value:
            raise Missing("avg_mem_alloc_gb")
        return f"Callback's memory is {rest.quoted} GB, at rest; the peak is {peak.quoted}{self.odd()}."

    def why(self) -> str:
        """Why the rates differ; said where they do."""
        last = self.rows()[-1]
        if last["loop"] != "trainer" or need(last, DEFAULT).value > 0.98 * need(last, RATE).value:
            raise Missing(DEFAULT)
        return "Default counts evaluation and checkpoints."


class CustomMultiNode(OfCustom):
    """The custom model on one rank of each of several nodes."""

    name = "fsdp_multi_node_fine_tuning_with_fsdp_custom_model"
    heading = "Multi-Node Fine-Tuning with FSDP (Custom Model)"
    details = ("fsdp.custom_multi_node",)
    table, what = "fsdp.custom_multi_node", "Custom model by number of nodes"

    def lines(self) -> list[Line]:
        """Labels and the source's rows."""
        return self.node_lines("Single Node, Single GPU" if self.site.gpu else "Single Node, Single process")

    def answers(self) -> list[Answer]:
        """What is said."""
        return [Answer("", [self.gains])]


class LinkTest(Problem):
    """All-reduce before training."""

    name = "fsdp_nccl_bandwidth_test_before_training"
    heading = "NCCL Bandwidth Test (before training)"
    details = ("fsdp.preflight",)
    figure = TABLE = "fsdp.preflight"

    def tables(self) -> list[Table]:
        """Its tables."""
        own = next((row for row in self.site.rows(self.TABLE, **self.levels()) if ok(row)), {})
        size = self.levels().get("size_mib") or own.get("size_mib", "4096")
        calls = f"{own['calls']} calls, " if own.get("calls") else ""
        nodes = any(self.emulated(nodes) for world, nodes in self.pairs() if ok(self.found(world, nodes)))
        return [
            Table(
                "All-reduce before training, bus bandwidth.",
                f"{'NCCL, its own algorithm (003 forces Tree)' if self.site.gpu else 'Gloo'}, {size} MiB, {calls}"
                f"host clock with synchronise{'; † nodes are name spaces of one host' if nodes else ''}.",
                ["Processes", "Nodes", "Measured AllReduce BW (GB/s)", "Threshold (GB/s)", "Exit code"],
                [self.row(world, nodes) for world, nodes in self.pairs()],
            )
        ]

    def answers(self) -> list[Answer]:
        """What is said."""
        return [Answer("", [self.bandwidth])]

    def title(self) -> str:
        """What the figure shows."""
        return self.bandwidth().rstrip(".")

    def levels(self) -> dict[str, str]:
        """Backend, and on a CPU the size."""
        return {"backend": "nccl"} if self.site.gpu else {"backend": "gloo", "size_mib": "16"}

    def pairs(self) -> Sequence[tuple[int, int]]:
        """Processes and nodes."""
        several = ((2, 1), (4, 1), (8, 1), (2, 2), (4, 4), (8, 8))
        return several if self.site.gpu else ((2, 1), (3, 1), (4, 1), (2, 2))

    def found(self, world: int, nodes: int) -> Row | None:
        """A row of the source."""
        return self.site.row(self.TABLE, world_size=world, on_nodes=nodes, **self.levels())

    def emulated(self, nodes: int) -> str:
        """† where several nodes are one host."""
        return several_nodes(self.site, {"status": "ok", "nodes": str(nodes)})

    def row(self, world: int, nodes: int) -> list[Cell]:
        """A row of the hand-in's."""
        row = self.found(world, nodes)
        measured = as_cell(row, "busbw_gb_per_s", mark=self.emulated(nodes))
        if row is None or not ok(row):
            rest = [as_cell(row, "threshold_gb_per_s"), as_cell(row, "exit_code")]
        else:
            rest = [Cell(row["threshold_gb_per_s"]), Cell(row["exit_code"])]
        return [label(world), label(nodes), measured, *rest]

    def bandwidth(self) -> str:
        """On most GPUs of one node."""
        found = [world for world, nodes in self.pairs() if nodes == 1 and ok(self.found(world, 1))]
        if not found:
            raise Missing(self.TABLE)
        return (
            f"{ranks(self.site, found[-1])} reduce at {need(self.found(found[-1], 1), 'busbw_gb_per_s').quoted} GB/s."
        )


class WeakScaling(Problem):
    """More layers on more ranks."""

    name = "fsdp_weak_scaling_experiment_with_fsdp_custom_model"
    heading = "Weak Scaling Experiment with FSDP (Custom Model)"
    details = ("fsdp.weak_setup", "fsdp.weak_scaling")
    figure = TABLE = "fsdp.weak_scaling"
    SETUP = "fsdp.weak_setup"
    COLUMNS = (RATE, "avg_mem_alloc_gb", "gpu_util_percent", "train_loss", "train_runtime_s")
    LEVELS = (("2", "3", "8"), ("4", "6", "4"), ("8", "12", "2"), ("16", "24", "1"))

    def tables(self) -> list[Table]:
        """Its tables."""
        return [
            Table(
                "Set-up as the text prints it, and as the scripts ran.",
                "Computed.",
                ["GPUs", "Per-GPU Batch Size", "Number of Layers", "batch that ran", "parameters that ran (M)"],
                [
                    [label(world), label(batch), label(layers), *self.as_run(world)]
                    for world, layers, batch in self.levels()
                ],
            ),
            Table(
                f"Weak scaling of the custom model{self.mark()}.",
                self.setup(),
                ["GPUs", "Num Layers", "Per-GPU Batch", "Total Params", "Samples/s (Callback)",
                 "GPU Memory (GB, Callback)", "GPU Utilization (%)", "Loss", "Runtime (s)", "Efficiency (%)"],
                [[*map(label, levels), *self.row(levels[0])] for levels in self.levels()],
                [Answer("", [self.formula]).text()],
            ),
        ]  # fmt: skip

    def answers(self) -> list[Answer]:
        """What is said."""
        return [Answer("", [self.efficient, self.inverted, self.why])]

    def title(self) -> str:
        """What the figure shows."""
        return f"Efficiency is {self.efficiency(self.last()).quoted} % on {self.on()}{self.mark()}"

    def levels(self) -> Sequence[tuple[str, str, str]]:
        """Ranks, layers, batch."""
        if self.site.gpu:
            return self.LEVELS
        rows = self.site.rows(self.SETUP, variant="source")
        return [(row["world_size"], row["num_layers"], row["batch_size"]) for row in rows]

    def planned(self, world: str) -> Row | None:
        """A row of the set-up."""
        return self.site.row(self.SETUP, variant="source", world_size=world)

    def found(self, world: str) -> Row | None:
        """A training."""
        return run(self.site, self.TABLE, world, variant="source")

    def as_run(self, world: str) -> list[Cell]:
        """Batch and parameters of the scripts."""
        parameters = of(self.planned(world), "ran_parameters")
        return [Cell("1"), Cell(f"{parameters.value / 1e6:.1f}")] if parameters else [NOT_MEASURED, NOT_MEASURED]

    def row(self, world: str) -> list[Cell]:
        """Figures of a row."""
        row = self.found(world)
        parameters = of(row, "total_params")
        try:
            kept = str(self.efficiency(row))
        except Missing:
            kept = ""
        efficiency = Cell("100% (baseline)") if row is not None and row is self.first() else Cell(kept)
        return [
            Cell(f"{parameters.value:,.0f}") if parameters else as_cell(row, "total_params"),
            *(cell(self.site, row, column) for column in self.COLUMNS),
            efficiency if ok(row) and efficiency.text else as_cell(row, "efficiency"),
        ]

    def trainings(self) -> list[Row]:
        """Trainings that are there."""
        return [row for world, *_ in self.levels() if (row := self.found(world)) is not None and ok(row)]

    def first(self) -> Row | None:
        """The baseline: the first level's row."""
        row = self.found(self.levels()[0][0]) if self.levels() else None
        return row if ok(row) else None

    def last(self) -> Row:
        """The row of most ranks."""
        if len(self.trainings()) < 2 or self.first() is None:
            raise Missing(self.TABLE)
        return self.trainings()[-1]

    def on(self) -> str:
        """Most ranks."""
        return ranks(self.site, self.last()["world_size"])

    def mark(self) -> str:
        """‡ where the model is not the one that the scripts build."""
        if not self.site.gpu:
            return ""
        rows = [(row, self.planned(row["world_size"]) or {}) for row in self.trainings()]
        return "‡" if any(row["total_params"] != plan.get("ran_parameters") for row, plan in rows) else ""

    def setup(self) -> str:
        """What stands behind the title."""
        row = self.first() or {}
        other = ""
        if self.mark() and (plan := self.planned(row.get("world_size", ""))):
            number = int(plan["steps_per_epoch"]) * int(plan["total_batch"])
            other = f"; ‡ {number} rows, {int(row['total_params']) / 1e6:.0f} M parameters"
            instead = f"500, {int(plan['ran_parameters']) / 1e6:.0f} M"
            if row["wrapped_by"] == "FSDP2":
                other, instead = f"{other}, layers wrapped", f"{instead}, one unit"
            other = f"{other} in place of {instead}"
        sizes = "d 2048, FP16, 512 tokens" if self.site.gpu else row.get("dtype", "fp32").upper()
        epochs = "1 epoch" if row.get("num_epochs") == "1" else "5 epochs"
        clock = "Trainer's clock" if row.get("loop", "trainer") == "trainer" else "host clock"
        return (
            f"{sizes}, {epochs}, {rounds(row)}, {clock}; efficiency T(first)/T(row) "
            f"by median steps, host clock, without the first step{other}."
        )

    def efficiency(self, row: Row | None) -> Figure:
        """The first row's step in percent of this one's."""
        return need(self.first(), "step_ms").share(need(row, "step_ms"))

    def by_formula(self) -> str:
        """The same the other way round, as 003 has it."""
        return need(self.last(), "step_ms").share(need(self.first(), "step_ms")).quoted

    def formula(self) -> str:
        """The line below the table."""
        times = [need(row, "train_runtime_s") for row in (self.last(), self.first())]
        return (
            f"By the workshop's formula, current over baseline: {self.by_formula()} % by steps, "
            f"{times[0].share(times[1]).quoted} % by runtimes{self.mark()}."
        )

    def work(self) -> Figure:
        """Work per rank of the last row in percent of the first's, with the vocabulary that was trained."""
        last = self.last()
        plans = [self.planned(str((row or {}).get("world_size"))) for row in (self.first(), last)]
        built = last["total_params"] == (plans[1] or {}).get("ran_parameters")
        first, now = (need(plan, "asked_tflop" if built else "tflop_per_gpu") for plan in plans)
        return now.share(first)

    def efficient(self) -> str:
        """How long a step takes, and with what work."""
        steps = [need(row, "step_ms").quoted for row in (self.last(), self.first())]
        return (
            f"Efficiency is {self.efficiency(self.last()).quoted} % on {self.on()}: a step takes {steps[0]} ms, "
            f"{steps[1]} in the first row. The work per {noun(self.site)} is {self.work().quoted} % of the first "
            f"row's{self.mark()}."
        )

    def inverted(self) -> str:
        """What 003 would print."""
        return f"The workshop's formula gives {self.by_formula()} % by steps{self.mark()}."

    def why(self) -> str:
        """Why the work falls; said where it does."""
        if self.work().value >= 99.5:
            raise Missing("tflop_per_gpu")
        return f"The work per {noun(self.site)} falls because the head does not grow with the layers."


class Defects(Problem):
    """What the workshop's scripts do otherwise than its text."""

    name = "fsdp_what_the_scripts_do_otherwise_than_the_text"
    heading = "What the scripts do otherwise than the text"

    def tables(self) -> list[Table]:
        """Its tables."""
        with open(DEFECTS, newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        seen = [self.seen(row["finding"]) for row in rows]
        filled = any(cell.filled for cell in seen if "](" not in cell.text)  # links alone are no measurement
        seen = [cell if filled else Cell(cell.text, filled=False) for cell in seen]
        return [
            Table(
                "The scripts against the text.",
                "Figures of this report's tables, or computed.",
                ["#", "what", "seen here"],
                [[label(row["number"]), label(row["defect"]), cell] for row, cell in zip(rows, seen, strict=True)],
            )
        ]

    def seen(self, finding: str) -> Cell:
        """What the site's tables show of it, or a link."""
        if finding.endswith(".md"):
            return Cell(f"[{Path(finding).stem}](../../{finding})")
        named: Callable[[], str] | None = getattr(self, finding.removeprefix("fsdp."), None)
        return word(Answer("", [named]).text() if named else "")

    def grown(self, column: str) -> tuple[Figure, str]:
        """The last planned row over the first, and on how many ranks each."""
        rows = [row for row in self.site.rows("fsdp.weak_setup", variant="source") if ok(row)]
        if len(rows) < 2:
            raise Missing(column)
        ends = f"on {rows[-1]['world_size']} as on {ranks(self.site, rows[0]['world_size'])}"
        return need(rows[-1], column).over(need(rows[0], column)), ends

    def way(self, way: str, column: str) -> Figure:
        """A count of a way to label."""
        return need(self.site.row("fsdp.labels", way=way), column)

    def defect_inverted(self) -> str:
        """Defect 1."""
        weak = WeakScaling(self.site)
        return f"On {weak.on()} the formula prints {weak.by_formula()} %{weak.mark()}."

    def defect_batches(self) -> str:
        """Defect 2."""
        row = next(iter(self.site.rows("fsdp.weak_setup", variant="source")), None)
        times = need(row, "ran_steps").value / need(row, "steps_per_epoch").value
        return f"On {ranks(self.site, (row or {})['world_size'])} an epoch has {times:g} times the steps."

    def defect_neither(self) -> str:
        """Defect 3."""
        times, ends = self.grown("ran_tflop")
        return f"A {noun(self.site)}'s step is {times.quoted} times as large {ends}."

    def defect_work(self) -> str:
        """Defect 4."""
        times, ends = self.grown("asked_tflop")
        return f"It is {times.quoted} times as large {ends}."

    def defect_doubling(self) -> str:
        """Defect 5."""
        times, ends = self.grown("ran_parameters")
        return f"It is {times.quoted} times as large {ends}."

    def labels_answer(self) -> str:
        """Defect 6."""
        share = self.way("source", "targets_read").share(self.way("source", "targets")).quoted
        return f"{share} % of the targets stand in the input at their own place."

    def labels_truncation(self) -> str:
        """Defect 7."""
        lost = self.way("source", "train_size").value - self.way("source", "rows_with_marker").value
        whose = "No prompt loses" if not lost else "1 prompt loses" if lost == 1 else f"{lost:.0f} prompts lose"
        return f"{whose} it at {self.way('source', 'max_length').value:.0f} tokens."

    def labels_copying(self) -> str:
        """Defect 8, the collator."""
        share = self.way("source_prompt", "targets_read").share(self.way("source_prompt", "targets")).quoted
        return f"{share} % of the targets are the input itself."

    def custom_copying(self) -> str:
        """Defect 8, the single-node script."""
        row = CustomSingleNode(self.site).least("source")
        return f"With its labels evaluation loss falls to {need(row, 'eval_loss').quoted}."

    def custom_shapes(self) -> str:
        """Defect 8, the row of one GPU."""
        rows = [self.site.row("fsdp.custom_shapes", which=which) for which in
                ("single node, as its script runs", "several GPUs and nodes, as their scripts run")]  # fmt: skip
        share = need(rows[0], "parameters").share(need(rows[1], "parameters")).quoted
        return f"It has {share} % of the other rows' parameters."

    def scores(self) -> str:
        """Defect 9."""
        return (
            f"Answers equal to the reference score {need(self.scored(), 'identical_workshop_f1_percent').quoted} % F1."
        )

    def scored(self) -> Row | None:
        """Answers after BLOOM's training."""
        return self.site.row("fsdp.baseline_answers", labels="answer", training="after")

    def world_of_one(self) -> str:
        """Defect 10."""
        one = WorldOfOne(self.site)
        full, alone = (need(one.found(setup), "peak_allocated_gib") for setup in ("FSDP1 FULL_SHARD", "without FSDP"))
        return f"As NO_SHARD it needs {full.share(alone).quoted} % of the memory without FSDP{one.mark()}."

    def sharding_words(self) -> str:
        """Defect 11."""
        strategies = Strategies(self.site)
        kept, whole = (need(strategies.found((one, "no", "no")), "state_gib") for one in ("SHARD_GRAD_OP", "DDP"))
        return f"SHARD_GRAD_OP keeps {kept.share(whole).quoted} % of DDP's state per rank."

    def offload(self) -> str:
        """Defect 12."""
        levels = {"api": "FSDP1", "offload": "yes", "exchange": "with each micro-batch"}
        ratio = need(self.site.row("fsdp.offload_accumulation", **levels), "norm_ratio")
        return f"FSDP1's summed gradients have {ratio.of(100 * ratio.value).quoted} % of their norm."

    def baseline_losses(self) -> str:
        """Defect 15."""
        baseline = Baseline(self.site)
        return f"Evaluation loss is least after epoch {baseline.at_least()} of {len(baseline.epochs())}."


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
