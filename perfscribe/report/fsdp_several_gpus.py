"""The FSDP workshop: trainings on several GPUs and nodes, the test of their links, weak scaling."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from perfscribe.report.cells import NO_SUCH_THING, NOT_MEASURED, Cell, as_cell, shown
from perfscribe.report.fsdp_one_gpu import NineRows
from perfscribe.report.fsdp_rows import (
    DEFAULT,
    LOSS,
    RATE,
    STEPPING,
    cell,
    losses,
    parameters,
    rounds,
    run,
    same_step,
    several_nodes,
    trained,
    vocabulary,
    weights,
    workload,
)
from perfscribe.report.problem import Answer, Detail, Entries, Finding, Part, Problem, Table, Title, Why
from perfscribe.report.site import Row, Site, entry, figure, ok, so_many
from perfscribe.show.rounding import NO_FIGURE

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
SCALES = "scale factors: samples/s(N) / samples/s(1), runtime(1) / runtime(N)"
CLOCKS = "Default: {} rate, all memory in use; Callback: its own rate, memory allocated between steps"
SAMPLED = "; GPU utilization: NVML, at the end of each optimizer step"
ON_ONE_HOST = "; † nodes are name spaces of one machine"
Line = tuple[Entries, Row | None]


def given(site: Site, table: str, world: int, **levels: str) -> Row | None:
    """A training as the scripts have it, one unit of FSDP1, before others."""
    found = run(site, table, world, wrapped_by="FSDP1", **levels)
    return found if ok(found) else run(site, table, world, **levels)


def compiled(row: Row | None) -> str:
    """How our tuned loop trains."""
    return f"{entry(row, 'dtype').upper()}, compiled, {entry(row, 'batch')} rows per GPU"


def outside_steps(row: Row | None) -> str:
    """How much of a training's runtime is not in its steps."""
    whole, steps = figure(row, DEFAULT), figure(row, STEPPING)
    return f"{whole.of(100 * (1 - whole.value / steps.value), steps)} % of the runtime is outside the steps"


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
        gain += f"{self.apart(self.first, last)}: {outside_steps(last)}, evaluation and checkpoints among it"
        return f"{gain}{self.marks([self.first, last])}."

    def apart(self, one: Row | None, other: Row | None) -> str:
        """Words for a ratio of two machines' figures."""
        differ = ok(one) and ok(other) and self.site.machine(one) != self.site.machine(other)
        return " (machines differ)" * differ

    def noise(self, row: Row | None) -> str:
        """Words for a gain over one rank that its rounds do not decide, or whose two sides are of other machines."""
        unsure = " (within noise)" * figure(self.first, DEFAULT).within_noise(figure(row, DEFAULT))
        return f"{unsure}{self.apart(self.first, row)}".replace(") (", ", ")

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
        fewer = {name: self.fewer(functools.partial(self.of, how=name)) for name in rows}
        wrapped = [one for one in others if one[0] != "tuned"]
        rest = "".join(f"; {name} {on} give {other}x{unsure}{fewer[name]}" for name, other, unsure in wrapped)
        tuned_one, tuned_all = (self.of(world, "tuned") for world in (1, self.world))
        tuned = figure(tuned_all, STEPPING).over(figure(tuned_one, STEPPING))
        said_of_tuned = f"; tuned, {tuned}x one tuned GPU{self.apart(tuned_one, tuned_all)}" if tuned else ""
        yield Answer(
            f"{way}{on} give {gain}x the samples/s of {self.alone}{noise}{fewer[how]}"
            f"{rest}{said_of_tuned}{self.marks([self.first, *rows.values()])}.",
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


class OfCustom(Scaling):
    """The custom model by ranks or nodes."""

    columns, what = CUSTOM, "Custom model"
    accumulation = "4"

    def setup(self, row: Row, rows: Sequence[Row]) -> str:
        """What stands behind the title."""
        whose = "Trainer's" + " formula for the" * (row["loop"] != "trainer")
        layers, epochs = so_many(row["num_layers"], "layer"), so_many(row["num_epochs"], "epoch")
        sampled = SAMPLED * self.site.gpu
        sizes = f"{layers}, d {row['hidden_size']}"
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
