"""The Polaris homework, in the published order: one GPU, ranks, widths, nodes, file formats, data types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfscribe.report.problem import Answer, Problem, Table
from perfscribe.report.site import NO_SUCH_THING, NOTHING, Cell, Missing, Row, Site, as_cell, known, label, of, word
from perfscribe.show import references
from perfscribe.show.rounding import GIB_AS_GB, MIB_AS_MB, Figure

TITLE = "Polaris homework"
OF_000, OF_001 = "polaris-homework-000", "polaris-homework-001"
RANKS, SAMPLES = 4, "2048"  # that the homework asks for


def one_device(site: Site) -> str:
    """What a single rank has."""
    return "one GPU" if site.gpu else "CPU"


def ranks(row: Row) -> int:
    """Ranks of a training; tables without that column are of one rank."""
    return int(row.get("world_size") or 1)


def best(site: Site, table: str, **levels: str) -> Row | None:
    """The row with these levels that is nearest to the homework: ok, and of most ranks."""
    found = list(site.rows(table, **levels))
    return max(found, key=lambda row: (row["status"] == "ok", ranks(row)), default=None)


def need(row: Row | None) -> Row:
    """A row that is ok; Missing where there is none."""
    if row is None or row["status"] != "ok":
        raise Missing("row")
    return row


def printed(experiment: str, metric: str, source: str, **levels: str | int) -> str:
    """A published figure as its source prints it; a word in its place as code."""
    found = [one for one in references.find(references.load(experiment), metric, **levels) if one.source == source]
    if not found:
        return NOTHING
    return found[0].text if found[0].value is not None else f"`{found[0].text}`"


def said_ranks(row: Row) -> str:
    """Ranks in words."""
    return "one rank" if ranks(row) == 1 else f"{ranks(row)} ranks"


def few_ranks(row: Row) -> str:
    """What a set-up says of fewer ranks than the homework's; nothing where there are as many."""
    return "" if ranks(row) >= RANKS else f"{said_ranks(row)} in place of {RANKS}"


def because(reasons: Sequence[str]) -> str:
    """The end of a set-up that says what its mark stands for."""
    said = ", ".join(reason for reason in reasons if reason)
    return f"; ‡ {said}" if said else ""


class SingleGpu(Problem):
    """The homework's training on one device."""

    name = "polaris_1"
    heading = "1. Single GPU"
    details = ("polaris.single_gpu", "polaris.single_gpu_epochs")
    TABLE = "polaris.single_gpu"
    BATCHES = (
        ("per sample, as the homework", "per_sample"),
        ("per batch", "per_batch"),
        ("on the device", "on_device"),
    )

    def tables(self) -> list[Table]:
        """By way to draw batches."""
        gpu, layers = self.site.gpu, self.layers()
        rows = []
        for count in layers:
            for said, batches in self.BATCHES[: None if gpu else 2]:
                row = self.site.row(self.TABLE, layers=count, batches=batches)
                first = gpu and batches == "per_sample"
                rows.append([
                    label(said if gpu else f"{said}, {count} layer{'s' * (count != '1')}"),
                    as_cell(row, "homework_clock_s"),
                    as_cell(row, "first_epoch_s"),
                    as_cell(row, "epoch_s"),
                    as_cell(row, "peak_gib", GIB_AS_GB),
                    label(printed("single_gpu", "training_s", OF_001) if first else NOTHING),
                ])  # fmt: skip
        row = self.row() or {}
        return [
            Table(
                "Training on one device.",
                f"{self.model()} in FP32, {row.get('samples', SAMPLES)} samples, {row.get('epochs', '10')} epochs, "
                f"batch 32, {one_device(self.site)}, one run each; time by the homework's clock, which stops when the "
                "last step is queued; later epochs: median ± half IQR; peak of allocated memory.",
                ["Batches", "Time (s)", "First epoch (s)", "Later epochs (s)", "Peak memory (GB)", "001 (s)"],
                rows,
            )
        ]

    def answers(self) -> list[Answer]:
        """Without letters."""
        return [Answer("", [self.epochs, self.loader])]

    def layers(self) -> list[str]:
        """Encoder layers of the preset."""
        return ["6"] if self.site.gpu else self.site.levels(self.TABLE, "layers")

    def row(self) -> Row | None:
        """The homework's loader, the most layers."""
        return self.site.row(self.TABLE, layers=self.layers()[-1], batches="per_sample") if self.layers() else None

    def model(self) -> str:
        """What is trained."""
        row = self.row()
        if row is None or row["status"] != "ok" or not self.site.gpu:
            return "nn.Transformer"
        return f"nn.Transformer of {Figure(float(row['parameters']) / 1e6)} M parameters"

    def epochs(self) -> str:
        """All epochs, the first and later ones."""
        row = need(self.row())
        count = {"5": "Five", "10": "Ten"}.get(row["epochs"], row["epochs"])
        model = "" if self.site.gpu else f" with {row['layers']} layers"
        total, first, later = (known(row, column).quoted for column in ("homework_clock_s", "first_epoch_s", "epoch_s"))
        return f"{count} epochs{model} take {total} s, the first of them {first} and later ones {later}."

    def loader(self) -> str:
        """What the loader takes; on a CPU that was timed with another model."""
        if not self.site.gpu:
            raise Missing("loader")
        share = self.site.figure("polaris.io_parts", "loader_share_percent", format="memory", cache="warm")
        return f"The loader, timed apart, takes {share.quoted} % of an epoch."


class RankMethods(Problem):
    """Ways to find rank and local rank, and binding."""

    name = "polaris_2"
    heading = "2. Rank Counting Methods"
    details = ("polaris.rank_methods", "polaris.rank_bindings")
    TABLE = "polaris.rank_methods"
    MODULO = "mpi4py, RANK % device_count"
    MPI = (("mpi4py, COMM_TYPE_SHARED", "mpi4py, COMM_TYPE_SHARED"), (MODULO, "mpi4py, rank mod devices"))
    LIST_OF_000 = "list:0,1:8,9:16,17:24,25"

    def tables(self) -> list[Table]:
        """By method, and the binding below."""
        gpu = self.site.gpu
        size = "10 epochs of 2048 samples, batch 32 per rank" if gpu else "model, samples and epochs of preset cpu"
        clock = "five warm-up steps are outside our clock, none outside the sources'" if gpu else "after warm-up steps"
        return [
            Table(
                "Training by way to find the ranks.",
                f"DDP in FP32, {RANKS} ranks, {size}; one run each, slowest rank, host clock with synchronise; "
                f"{clock}.",
                ["Method", "Launcher", "Ranks", "Local ranks", "Time (s)", "Time, bound (s)", "published (s)"],
                [self.line(said, method) for said, method in self.methods()],
                [self.binding()],
            )
        ]

    def answers(self) -> list[Answer]:
        """Without letters."""
        return [Answer("", [self.agree, self.times, self.speedup, self.bound])]

    def methods(self) -> list[tuple[str, str]]:
        """Row labels and the table's names."""
        own = ("PALS", "Open MPI", "torchrun") if self.site.gpu else ("Open MPI", "torchrun", "Slurm")
        return [*self.MPI, *((name, name) for name in own)]

    def launch(self, method: str) -> list[Row]:
        """The ranks of the first launch by this method that is ok."""
        found = [
            row
            for row in self.site.rows(self.TABLE, method=method, status="ok")
            if row["used_device"].startswith(self.site.device)
        ]
        return [row for row in found if row["launcher"] == found[0]["launcher"]]

    def line(self, said: str, method: str) -> list[Cell]:
        """A row of the table."""
        launched, row = self.launch(method), self.site.row(self.TABLE, method=method)
        row = launched[0] if launched else row
        time = as_cell(row, "training_s")
        found = [
            word(span([one[column] for one in launched])) if launched else time for column in ("rank", "local_rank")
        ]
        return [
            label(said),
            label(row["launcher"] if row else NOTHING),
            *found,
            time,
            as_cell(row, "bound_training_s"),
            label(self.published(said)),
        ]

    def published(self, said: str) -> str:
        """Of the homework's own sizes."""
        if not self.site.gpu:
            return NOTHING
        methods = {self.MPI[0][0]: (OF_000, "mpi4py_split_type"), self.MODULO: (OF_001, "mpi4py_modulo")}
        if said not in methods:
            return NOTHING
        source, method = methods[said]
        return printed("rank_methods", "training_s", source, method=method)

    def binding(self) -> str:
        """A list of ranks with their cores, as 000 has it."""
        asked = self.LIST_OF_000 if self.site.gpu else "even"
        lines = []
        for row in self.site.rows("polaris.rank_bindings", machine="this machine", cpu_bind=asked, status="ok"):
            cores = f"Core{'s' * ('-' in row['asked_cores'] or ',' in row['asked_cores'])} {row['asked_cores']}"
            near = "no GPU" if row["gpu"] == "no GPU" else f"GPU {row['gpu']}, {row['nearness']}"
            lines.append(f"* Rank {row['rank']}: mask {row['granted_mask']} ({cores}), {near}")
        bound = "000's list" if self.site.gpu else "even"
        return "\n".join([f"Bound to cores ({bound}), as granted:", "", *lines]) if lines else ""

    def launches(self) -> dict[str, list[Row]]:
        """Ranks of every method that ran."""
        found = {said: self.launch(method) for said, method in self.methods()}
        return {said: launched for said, launched in found.items() if launched}

    def agree(self) -> str:
        """How many methods give each rank a place of its own, in order."""
        places = [str(place) for place in range(RANKS)]
        wanted = [places, places]
        found = self.launches()
        right = [
            said
            for said, launched in found.items()
            if [[one[column] for one in launched] for column in ("rank", "local_rank")] == wanted
        ]
        if not found:
            raise Missing(self.TABLE)
        text = f"{len(right)} methods give ranks {span(places)} and local ranks {span(places)}."
        wrong = [said for said in found if said not in right]
        return f"{text} Not so: {'; '.join(wrong)}." if wrong else text

    def times(self) -> str:
        """From the quickest to the slowest."""
        return f"Training takes {self.ends('training_s')} s."

    def bound(self) -> str:
        """The same where ranks are bound."""
        return f"Bound it takes {self.ends('bound_training_s')} s."

    def ends(self, column: str) -> str:
        """Least and most of a column."""
        found = [one for launched in self.launches().values() if (one := of(launched[0], column)) is not None]
        if not found:
            raise Missing(column)
        least, most = (pick(found, key=lambda one: one.value).quoted for pick in (min, max))
        return least if least == most else f"{least} to {most}"

    def speedup(self) -> str:
        """Over one GPU; on a CPU that trains another model."""
        if not self.site.gpu:
            raise Missing("speedup")
        several = known(next(iter(self.launch(self.MPI[1][1])), None), "training_s")
        one = self.site.figure(SingleGpu.TABLE, "homework_clock_s", batches="per_sample")
        return f"By {self.MODULO} it is {one.over(several).quoted} times as fast as on one GPU (001: 3.64)."


def span(numbers: Sequence[str]) -> str:
    """0-3 for numbers that follow each other, else all of them."""
    start = int(numbers[0])
    if list(numbers) == [str(start + place) for place in range(len(numbers))] and len(numbers) > 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(numbers)


class TensorDimensions(Problem):
    """Wider samples, without and with a wider model."""

    name = "polaris_3"
    heading = "3. Tensor Dimensions"
    details = ("polaris.tensor_dims", "polaris.tensor_dims_scale")
    TABLE = "polaris.tensor_dims"
    EPOCHS = "5"

    def tables(self) -> list[Table]:
        """By features and d_model."""
        default = self.widths()[0][1]
        rows = []
        for place, (features, width) in enumerate(self.widths()):
            row = self.row(features, width)
            rows.append([
                label(f"({row['samples'] if row else SAMPLES},1,{features})"),
                label("default" if place < 2 else width),
                *(
                    expected(as_cell(row, column, scale), place == 1)
                    for column, scale in (("training_s", 1.0), ("allocated_gib", GIB_AS_GB), ("peak_gib", GIB_AS_GB))
                ),
                label(self.published(place)),
            ])  # fmt: skip
        return [
            Table(
                f"Training by width{self.mark()}.",
                f"FP32, {self.epochs()}, default d_model {default}, "
                f"one run each, host clock with synchronise; allocated: after training, peak: of allocated memory"
                f"{because(self.reasons())}.",
                ["src", "d_model", "Time (s)", "Allocated memory (GB)", "Peak memory (GB)", "001"],
                rows,
            )
        ]

    def answers(self) -> list[Answer]:
        """Without letters."""
        return [Answer("", [self.error, self.wider])]

    def widths(self) -> list[tuple[str, str]]:
        """Features and d_model: the model's default twice, then both."""
        if self.site.gpu:
            return [("512", "512"), ("1024", "512"), ("1024", "1024"), ("4096", "4096")]
        found = self.site.levels(self.TABLE, "d_model", dtype="fp32") or ["16", "32", "128"]
        return [(found[0], found[0]), (found[1], found[0]), *((width, width) for width in found[1:])]

    def row(self, features: str, width: str) -> Row | None:
        """A training in FP32."""
        return best(self.site, self.TABLE, features=features, d_model=width, dtype="fp32", weights="fp32")

    def rows(self) -> list[Row]:
        """Those that are ok."""
        found = [self.row(*one) for one in self.widths()]
        return [row for row in found if row is not None and row["status"] == "ok"]

    def epochs(self) -> str:
        """Of the preset's rows."""
        found = [row["epochs"] for row in self.rows()] or [self.EPOCHS]
        if self.site.gpu or found[0] == found[-1]:
            return f"{self.EPOCHS if self.site.gpu else found[0]} epochs"
        return f"{found[0]} epochs ({found[-1]} with d_model set)"

    def reasons(self) -> list[str]:
        """How the rows differ from the homework's; levels of preset cpu do not count."""
        if not self.rows() or not self.site.gpu:
            return []
        fewer = [row for row in self.rows() if row["epochs"] != self.EPOCHS]
        widths = " and ".join(row["d_model"] for row in fewer)
        epochs = f"{fewer[0]['epochs']} epochs in place of {self.EPOCHS} at d_model {widths}" if fewer else ""
        return [few_ranks(self.rows()[0]), epochs]

    def mark(self) -> str:
        """Whether any row differs."""
        return "‡" if any(self.reasons()) else ""

    def published(self, place: int) -> str:
        """001's figures of the model's default width."""
        if not self.site.gpu or place > 1:
            return NOTHING
        if place == 1:
            return printed("tensor_dims", "training_s", OF_001, d_model=1024)
        memory = printed("tensor_dims", "memory_allocated_gib", OF_001, d_model=512)
        return f"{printed('tensor_dims', 'training_s', OF_001, d_model=512)}, {memory} GiB"

    def error(self) -> str:
        """What a model of another width than its samples does."""
        features, width = self.widths()[1]
        row = self.row(features, width)
        if row is None or row["status"] != "failed":
            raise Missing("failed")
        return f"With the default d_model {width}, {features} features raise an error, whatever the memory."

    def wider(self) -> str:
        """Memory and time where d_model is set."""
        said: list[str] = []
        for width in [width for _, width in self.widths()[2:]]:
            row = self.row(width, width)
            peak, time = known(row, "peak_gib", GIB_AS_GB), known(row, "training_s")
            epochs = known(row, "epochs").value
            each = time.of(time.value / epochs)
            said.append(f"{width} {'needs ' * (not said)}{peak.quoted} GB and {each.quoted} s per epoch")
        return f"With it set, {', '.join(said)}{self.mark()}."


def expected(cell: Cell, fails: bool) -> Cell:
    """A failure that is the result counts as a figure."""
    return Cell(cell.text) if fails and cell.text == "failed" else cell


class CrossNode(Problem):
    """DDP's communication across nodes and within one."""

    name = "polaris_4"
    heading = "4. Cross-Node Communication Costs"
    details = (
        "polaris.communication",
        "polaris.communication_nodes",
        "polaris.communication_ranks",
        "polaris.communication_trainings",
        "polaris.communication_bandwidth",
    )
    figure = "polaris.communication_wait"
    TABLE, OF_NODES = "polaris.communication", "polaris.communication_nodes"
    TOTAL, SHARE, MEAN = "Total communication time (ms)", "Share of all device time (%)", "Mean latency (ms)"
    TRANSFER, WAITING = "Of it transfer (ms)", "Of it waiting (ms)"
    METRICS = (
        ("Total Comm. Time", TOTAL, " ms"),
        ("Comm. Overhead", SHARE, " %"),
        ("Avg Latency", MEAN, " ms"),
    )

    def tables(self) -> list[Table]:
        """000's metrics."""
        at, end = self.marks()
        rows = []
        for said, metric, unit in self.METRICS:
            row = self.row(metric)
            rows.append([
                label(said),
                as_cell(row, "inter", unit=unit, mark=at),
                as_cell(row, "intra", unit=unit),
                as_cell(row, "impact", unit="×", mark=at),
            ])  # fmt: skip
        model = "DDP of 44.1 M parameters in FP32, batch 32 per rank" if self.site.gpu else "DDP, model of preset cpu"
        backend = "NCCL" if self.site.gpu else "Gloo"
        turns = (self.row(self.TOTAL) or {}).get("turns", "6")
        return [
            Table(
                f"Communication of DDP across nodes and within{end}.",
                f"{model}, 2 ranks, {backend}: rank 0 over 2 active profiled steps, median ± half IQR of {turns} "
                f"turns, torch profiler{self.links()}.",
                ["Metric", "Task 4 (Inter-Node)", "Task 5 (Intra-Node)", "Impact"],
                rows,
                [self.parts(), self.published()],
            )
        ]

    def answers(self) -> list[Answer]:
        """Without letters."""
        return [Answer("", [self.transfers, self.totals, self.why])]

    def title(self) -> str:
        """What of communication is no transfer."""
        if self.cluster():
            raise Missing("the figure shows one machine")
        at, end = self.marks()
        across, within = self.both(self.TRANSFER)
        return f"Transfer takes {across} ms across{at} and {within} within; the rest of communication is waiting{end}"

    def cluster(self) -> bool:
        """Whether two nodes of a cluster were measured."""
        levels = {"backend": self.backend(), "between": "two nodes of a cluster", "status": "ok"}
        return next(self.site.rows(self.OF_NODES, **levels), None) is not None

    def backend(self) -> str:
        """Of the site's preset."""
        return "nccl" if self.site.gpu else "gloo"

    def row(self, metric: str) -> Row | None:
        """A metric, of a cluster's nodes where they were measured."""
        levels = {"backend": self.backend(), "implementation": "torch_ddp", "metric": metric}
        if self.cluster():
            return self.site.row(self.OF_NODES, between="two nodes of a cluster", **levels)
        return self.site.row(self.TABLE, tool="torch_profiler", **levels)

    def link(self, placement: str) -> str:
        """What the bytes go through on one machine."""
        levels = {"backend": self.backend(), "placement": placement, "tool": "torch_profiler"}
        row = self.site.row("polaris.communication_ranks", implementation="torch_ddp", **levels)
        return row["link"] if row else ""

    def marks(self) -> tuple[str, str]:
        """What stands behind figures across nodes, and what behind a title or sentence whose figures all have it."""
        if self.cluster():
            return "", "" if self.site.gpu else "†"
        return ("", "†") if self.link("intra").startswith("TCP") else ("†", "")

    def links(self) -> str:
        """The set-up's end: what stands for the nodes."""
        if self.cluster():
            nodes = "two nodes of a Slurm cluster"
            return f"; {nodes}" if self.site.gpu else f"; † TCP for both, {nodes} that may be of one host"
        at, _ = self.marks()
        if not at:
            return "; † one machine, TCP over loopback for both, so that a ratio near 1 is expected"
        within = "NVLink" if "(NV" in self.link("intra") else self.link("intra")
        return f"; † two nodes are one machine with TCP over loopback, within is {within}"

    def both(self, metric: str) -> list[str]:
        """A metric across nodes and within, as quoted."""
        return [known(self.row(metric), column).quoted for column in ("inter", "intra")]

    def calls(self) -> str:
        """How many there are, where they are as many."""
        across, within = self.both("Calls")
        if across != within:
            raise Missing("calls")
        return Figure(float(across), exact=True).quoted

    def parts(self) -> str:
        """The line below the table."""
        try:
            transfer, waiting, calls = self.both(self.TRANSFER), self.both(self.WAITING), self.calls()
        except Missing:
            return ""
        at, end = self.marks()
        return (
            f"Of it transfer / waiting for the other rank: {transfer[0]} / {waiting[0]} ms across{at}, "
            f"{transfer[1]} / {waiting[1]} ms within{end}; {calls} calls each."
        )

    def published(self) -> str:
        """000's figures, and 001's training of one rank beside ours."""
        row = self.site.row(
            "polaris.communication_trainings", backend="nccl", profiled="yes, the process's first profile"
        )
        own = of(row, "epoch_s") if self.site.gpu else None
        here = f"; here {own.quoted}" if own else ""
        return (
            "Published: 000: 677.21 and 6.97 ms (97×), 93.60 and 14.40 %, 30.78 and 0.44 ms, 22.0 and 15.8 calls. "
            f"001: one rank, profiled, 10 epochs in 20.68 s, 2.07 per epoch{here}."
        )

    def transfers(self) -> str:
        """Transfer alone, for the same calls."""
        at, end = self.marks()
        across, within = self.both(self.TRANSFER)
        row = need(self.row(self.TRANSFER))
        same = row["impact_verdict"] == "cannot tell"
        ratio = "equal within noise" if same else f"{known(row, 'impact').quoted} times{at}"
        calls = self.calls()
        return f"Transfer takes {across} ms across{at} and {within} within, {ratio}, for the same {calls} calls{end}."

    def totals(self) -> str:
        """All of communication."""
        at, end = self.marks()
        across, within = self.both(self.TOTAL)
        return f"With waiting, communication takes {across} ms across{at} and {within} within{end}."

    def why(self) -> str:
        """What waiting is, where there is any."""
        if not any(float(waiting) for waiting in self.both(self.WAITING)):
            raise Missing(self.WAITING)
        return "A rank waits for the other to arrive; that time says nothing about the link."


class Formats(Problem):
    """Training from memory and from files."""

    name = "polaris_5"
    heading = "5. I/O Format Comparison"
    details = (
        "polaris.io_formats",
        "polaris.io_parts",
        "polaris.io_reads",
        "polaris.io_chunks",
        "polaris.io_workers",
        "polaris.io_threads",
    )
    figure = "polaris.io_times"
    TABLE, PARTS, READS = "polaris.io_formats", "polaris.io_parts", "polaris.io_reads"
    FORMATS = (
        ("In-Memory", "memory"),
        ("HDF5 compressed", "hdf5_gzip"),
        ("HDF5 uncompressed", "hdf5"),
        ("PyTorch .pt", "pt"),
        ("NumPy .npz compressed", "npz_compressed"),
        ("NumPy .npz uncompressed", "npz"),
        ("NumPy .npy files", "npy"),
    )
    WHOLE = ("pt", "npz_compressed", "npz", "npy")

    def tables(self) -> list[Table]:
        """By format."""
        gpu, mark = self.site.gpu, self.mark()
        rows = []
        for said, name in self.FORMATS:
            row = self.row(name)
            size = NO_SUCH_THING if name == "memory" else as_cell(row, "size_mib", MIB_AS_MB)
            published = printed("io_formats", "training_s", OF_001, format=name) if gpu else NOTHING
            ratio = as_cell(row, "against_memory", unit="x", mark=mark)
            rows.append([label(said), as_cell(row, "training_total_s", mark=mark), size, ratio, label(published)])
        samples, epochs = self.workload()
        memory = self.row("memory") or {}
        where = one_device(self.site) if ranks(memory) == 1 else said_ranks(memory)
        marked = (
            f"; ‡ one rank with a quarter of the samples, without DDP and profiler; 001 ran {RANKS} ranks under both"
        )
        return [
            Table(
                "Training from memory and from files.",
                f"{epochs} epoch{'s' * (epochs != '1')} of {samples} samples, batch 32, {where}, files "
                "warm in the page cache, one run each, host clock around the epochs; ratio ± half of its interquartile "
                f"range{marked if mark else ''}.",
                ["Format", "Time (s)", "Size (MB)", "vs in-memory", "001 (s)"],
                rows,
            )
        ]

    def answers(self) -> list[Answer]:
        """Without letters."""
        return [Answer("", [self.ratios, self.chunks, self.saved, self.whole])]

    def title(self) -> str:
        """HDF5 with gzip beside the others."""
        packed, others = self.waits("hdf5_gzip"), [self.waits(name) for _, name in self.FORMATS if name != "hdf5_gzip"]
        most = max(others, key=lambda one: one.value)
        return (
            f"In training, files warm, HDF5 with gzip takes the loader {packed.quoted} ms per sample, every other "
            f"format at most {most.quoted} ms"
        )

    def row(self, name: str, table: str = TABLE) -> Row | None:
        """A format's row, files warm."""
        return best(self.site, table, format=name, cache="warm")

    def mark(self) -> str:
        """Whether fewer ranks trained than the homework's; levels of preset cpu do not count."""
        row = self.row("memory")
        return "‡" if self.site.gpu and row is not None and ranks(row) < RANKS else ""

    def workload(self) -> tuple[str, str]:
        """Samples, of how many, and epochs."""
        samples, _, epochs = (self.row("memory") or {}).get("training_samples", "512 of 2048 × 5").rpartition(" × ")
        return samples, epochs

    def waits(self, name: str) -> Figure:
        """What the loader takes for a sample, ms."""
        wait = known(self.row(name, self.PARTS), "loader_wait_s", 1000)
        return wait.of(wait.value / int(self.workload()[0].split(" ")[0]))

    def ratios(self) -> str:
        """Against memory."""
        packed = known(self.row("hdf5_gzip"), "against_memory")
        names = [name for _, name in self.FORMATS if name not in ("memory", "hdf5_gzip")]
        others = [one for name in names if (one := of(self.row(name), "against_memory")) is not None]
        least, most = (pick(others, key=lambda one: one.value).quoted for pick in (min, max))
        return (
            f"HDF5 compressed takes {packed.quoted} times as long as memory, the others {least} to {most} "
            f"times{self.mark()}."
        )

    def chunks(self) -> str:
        """What one sample inflates, where that is more than itself."""
        row = self.row("hdf5_gzip", self.READS)
        times = known(row, "decoded_kib").over(known(row, "sample_kib"))
        if times.value < 2:
            raise Missing("chunks")
        return f"Each sample inflates whole chunks, {times.quoted} times its own bytes."

    def saved(self) -> str:
        """What gzip saves."""
        return f"gzip saves {known(self.row('hdf5_gzip'), 'saved_percent').quoted} % of storage."

    def whole(self) -> str:
        """Which formats are not read while training is timed: their loaders wait less than HDF5's."""
        waits = [self.waits(name).value for name in self.WHOLE]
        if max(waits) >= self.waits("hdf5").value:
            raise Missing("whole")
        return ".pt, both .npz and .npy are read whole before the clock starts, so that they train from memory."


class DataTypes(Problem):
    """Wide models in BF16, and autocast by length and width."""

    name = "polaris_6"
    heading = "6. Large Tensors and Data Types"
    details = ("polaris.tensor_dims_scale", "polaris.dtypes", "polaris.dtypes_against_fp32")
    figure = "polaris.dtypes_by_length"
    SCALE, DTYPES, RATIOS = "polaris.tensor_dims_scale", "polaris.dtypes", "polaris.dtypes_against_fp32"
    FORMATS = ("fp32", "fp16", "bf16")

    def tables(self) -> list[Table]:
        """000's, then 001's."""
        return [self.scale_up(), self.by_type()]

    def answers(self) -> list[Answer]:
        """Without letters."""
        return [Answer("", [self.peaks]), Answer("", [self.autocast, self.why])]

    def title(self) -> str:
        """BF16 where it matters most."""
        base, _, lengths = self.levels()
        at = f"At length {lengths[-1]} and width {base}"
        return f"{at} BF16's later epochs take {self.time(base, lengths[-1])}{self.mark()}"

    # The comparison table.

    def compared(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Widths and numbers of samples of both tasks."""
        if self.site.gpu:
            return ("1024", "4096"), (SAMPLES, "10000")
        widths = self.site.levels(self.SCALE, "d_model", dtype="bf16") or ["32", "128"]
        samples = self.site.levels(self.SCALE, "samples", dtype="bf16") or ["64", "128"]
        return (widths[0], widths[-1]), (samples[0], samples[-1])

    def scale(self, width: str, dtype: str, samples: str) -> Row | None:
        """A row whose weights have the dtype."""
        return best(self.site, self.SCALE, d_model=width, dtype=dtype, weights=dtype, samples=samples)

    def scale_up(self) -> Table:
        """000's table."""
        widths, samples = self.compared()
        tasks = list(zip(widths, ("fp32", "bf16"), samples, strict=True))
        rows = [self.scale(*task) for task in tasks]
        epochs = (rows[0] or {}).get("epochs_n", "2")
        return Table(
            "Comparison Table.",
            f"{said_ranks(rows[0] or {}).capitalize()}, weights of the same dtype; peak of allocated memory, "
            f"throughput of the slowest and the fastest of {epochs} epochs, one run each.",
            ["Metric", "Task 3 (Baseline)", "Task 6 (Scale-Up)"],
            [
                [label("Embedding Dim"), *(label(width) for width, _, _ in tasks)],
                [label("Data Type"), *(label(dtype) for _, dtype, _ in tasks)],
                [label("Dataset Size"), *(label(f"{count} samples") for _, _, count in tasks)],
                [label("Peak Memory"), *(as_cell(row, "peak_gb", unit=" GB") for row in rows)],
                [label("Throughput"), *(throughput(row) for row in rows)],
            ],
            [
                self.one_change(),
                "Published (000): 4.05 GB (unexplained), 200 - 384 samp/s; 15.78 GB, 340 - 370 samp/s.",
            ],
        )

    def peak(self, width: str, dtype: str, samples: str) -> str:
        """GB, as quoted."""
        return known(self.scale(width, dtype, samples), "peak_gb").quoted

    def one_change(self) -> str:
        """Width, dtype and samples changed one at a time."""
        (narrow, wide), (few, _) = self.compared()
        try:
            return (
                f"One change at a time: {wide} in fp32 {self.peak(wide, 'fp32', few)} GB, {narrow} in bf16 "
                f"{self.peak(narrow, 'bf16', few)}, {wide} in bf16 with {few} samples {self.peak(wide, 'bf16', few)}."
            )
        except Missing:
            return ""

    def peaks(self) -> str:
        """What changes the peak."""
        (narrow, wide), (few, many) = self.compared()
        base, wider = self.peak(narrow, "fp32", few), self.peak(wide, "fp32", few)
        half, larger = self.peak(wide, "bf16", few), self.peak(wide, "bf16", many)
        end = "samples do not change it" if half == larger else f"{larger} with {many} samples in place of {few}"
        return f"The peak is {base} GB at width {narrow} in fp32, {wider} at {wide}, {half} there in bf16; {end}."

    # Autocast.

    def levels(self) -> tuple[str, list[str], list[str]]:
        """The first width, wider ones, and lengths of the target."""
        if self.site.gpu:
            return "512", ["2048", "4096"], ["20", "50", "100"]
        widths = self.site.levels(self.DTYPES, "d_model") or ["32", "64"]
        return widths[0], widths[1:], self.site.levels(self.DTYPES, "target_length") or ["20", "50", "100"]

    def row(self, width: str, length: str, dtype: str = "bf16", table: str = DTYPES) -> Row | None:
        """A training."""
        return best(self.site, table, d_model=width, target_length=length, dtype=dtype)

    def by_type(self) -> Table:
        """001's table."""
        base, wide, lengths = self.levels()
        configurations = [(f"Large_Seq_{length}", base, length) for length in lengths[1:]]
        configurations += [(f"Large_Feature_{width}", width, lengths[0]) for width in wide]
        rows = [self.line("Baseline", base, lengths[0], "fp32")]
        rows += [self.line(*one, dtype) for one in configurations for dtype in self.FORMATS]
        epochs = (self.row(base, lengths[0]) or {}).get("epochs", "3")
        return Table(
            f"Training by length, width and data type{self.mark()}.",
            f"{epochs} epochs, the first with its start-up, batch 16, autocast, one run each, host clock; peak of "
            "allocated memory"
            f"{because(self.reasons())}.",
            ["Configuration", "Data type", "Time (s)", "Memory (GB)", "001 (s, GiB)"],
            rows,
        )

    def line(self, said: str, width: str, length: str, dtype: str) -> list[Cell]:
        """A row of that table."""
        row = self.row(width, length, dtype)
        return [
            label(said),
            label(dtype.upper()),
            as_cell(row, "training_s"),
            as_cell(row, "peak_gib", GIB_AS_GB),
            label(self.published(width, length, dtype)),
        ]

    def published(self, width: str, length: str, dtype: str) -> str:
        """001's time and memory, or its word for both."""
        if not self.site.gpu:
            return NOTHING
        if width != "512":
            return printed("dtypes", "training_s", OF_001, d_model=int(width))
        levels: dict[str, str | int] = {"d_model": int(width), "seq_len": int(length), "dtype": dtype}
        return ", ".join(printed("dtypes", metric, OF_001, **levels) for metric in ("training_s", "peak_memory_gib"))

    def reasons(self) -> list[str]:
        """How rows differ from the homework's; levels of preset cpu do not count."""
        base, wide, lengths = self.levels()
        found = [self.row(width, lengths[0]) for width in (base, wide[-1])]
        if not self.site.gpu or found[0] is None or found[1] is None:
            return []
        few, fewer = (row["samples"] for row in found if row)
        wider = f" (wider models: {fewer})" if fewer != few else ""
        samples = f"{few} samples{wider} in place of {SAMPLES}" if {few, fewer} != {SAMPLES} else ""
        return [few_ranks(found[0]), samples]

    def mark(self) -> str:
        """Whether they differ."""
        return "‡" if any(self.reasons()) else ""

    def ratio(self, width: str, length: str) -> str | None:
        """BF16's time over FP32's, as quoted; None where that is within noise."""
        row = need(self.row(width, length, table=self.RATIOS))
        return None if row["epochs_apart"] == "overlap" else replace(known(row, "time_ratio"), single=True).quoted

    def time(self, width: str, length: str) -> str:
        """The same in words."""
        ratio = self.ratio(width, length)
        return f"{ratio} times FP32's time" if ratio else "FP32's time within noise"

    def short(self, width: str, length: str) -> str:
        """The same as the second of two."""
        ratio = self.ratio(width, length)
        return f"{ratio} times" if ratio else "the same within noise"

    def memory(self, width: str, length: str) -> Figure:
        """BF16's peak over FP32's."""
        return known(self.row(width, length, table=self.RATIOS), "memory_ratio")

    def autocast(self) -> str:
        """Time and peak of the longest and the widest."""
        base, wide, lengths = self.levels()
        long, widest = (base, lengths[-1]), (wide[-1], lengths[0])
        peaks = [self.memory(*one).quoted for one in (long, widest)]
        return (
            f"With BF16 autocast later epochs of Large_Seq_{lengths[-1]} take {self.time(*long)}, of Large_Feature_"
            f"{wide[-1]} {self.short(*widest)}; the peak is {peaks[0]} and {peaks[1]} of FP32's{self.mark()}."
        )

    def why(self) -> str:
        """Why a wide model's peak stays, where it does."""
        _, wide, lengths = self.levels()
        if self.memory(wide[-1], lengths[0]).value < 0.95:
            raise Missing("memory_ratio")
        return (
            "Autocast leaves weights, gradients and the optimizer's state in FP32, which is most of a wide model's "
            "memory."
        )


def throughput(row: Row | None) -> Cell:
    """From the slowest epoch to the fastest."""
    lowest, highest = (of(row, column) for column in ("lowest_per_s", "highest_per_s"))
    if lowest is None or highest is None:
        return as_cell(row, "lowest_per_s")
    return Cell(f"{lowest.quoted} - {highest.quoted} samp/s")


PROBLEMS = (SingleGpu, RankMethods, TensorDimensions, CrossNode, Formats, DataTypes)
