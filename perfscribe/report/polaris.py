"""The Polaris homework, in the published order: one GPU, ranks, widths, nodes, file formats, data types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfscribe.report.cells import NO_SUCH_THING, Cell, as_cell, word
from perfscribe.report.problem import Answer, Entries, Finding, Part, Problem, Table, Title, Why
from perfscribe.report.site import NOTHING, OF_GRID, Row, Site, ends, entry, figure, from_to, ok, printed, so_many
from perfscribe.show.rounding import MIB_AS_MB, NO_FIGURE

TITLE = "Polaris homework"
OF_000, OF_001 = "polaris-homework-000", "polaris-homework-001"
RANKS, SAMPLES = 4, "2048"  # that the homework asks for
ONE_RANK = f"; ‡ one rank in place of {RANKS}"  # of tasks 3, 5 and 6: their tables have no others
MPI4PY, MODULO = "mpi4py, COMM_TYPE_SHARED", "mpi4py, RANK % device_count"
NAMES = {MODULO: "mpi4py, rank mod devices"}  # in the table of measurements


class SingleGpu(Problem):
    """The homework's training on one device."""

    name, heading = "polaris_1", "1. Single GPU"
    details = ("polaris.single_gpu",)
    BATCHES = (
        ("per sample, as the homework", "per_sample"),
        ("per batch", "per_batch"),
        ("on the device", "on_device"),
    )

    def parts(self) -> Iterator[Part]:
        """By way to draw batches; epochs and loader, which a CPU times with another model."""
        site, gpu = self.site, self.site.gpu
        layers = site.swept(self.table, "layers", ["6"], [])
        # The homework's loader, the most layers.
        row = site.row(self.table, layers=layers[-1], batches="per_sample") if layers else None
        size = f" of {figure(row, 'parameters', 1e-6)} M parameters" if gpu and ok(row) else ""
        any_row = row or site.row(self.table)
        yield Table(
            "Training on one device.",
            f"nn.Transformer{size} in {entry(any_row, 'dtype', 'fp32').upper()}, {entry(any_row, 'samples', SAMPLES)} "
            f"samples, {entry(any_row, 'epochs', '10')} epochs, batch {entry(any_row, 'batch', '32')}, "
            f"{site.one_device}, one run each; time by the homework's clock, which stops when the last step is queued; "
            f"later epochs: median ± half IQR{site.of_so_many(self.table, 'epoch_s_n')}; peak of allocated memory.",
            ["Batches", "Time (s)", "First epoch (s)", "Later epochs (s)", "Peak memory (GB)", "001 (s)"],
            [self.line(n, *way) for n in layers for way in self.BATCHES[: None if gpu else 2]],
        )
        behind, step = figure(row, "behind_ms"), figure(row, "epoch_s", 1000).over(figure(row, "steps_per_epoch"))
        host = behind.value < step.value / 10
        share = site.value("polaris.io_parts", "loader_share_percent", format="memory", cache="warm")
        total, first, later = (figure(row, one) for one in ("homework_clock_s", "first_epoch_s", "epoch_s"))
        on_cpu = "" if gpu else f" with {so_many(entry(row, 'layers'), 'layer')}"
        yield Answer(
            f"{entry(row, 'epochs')} epochs take {total} s{on_cpu}, the first {first} and later ones {later}.",
            f"The GPU finishes {behind} ms after the last step is queued, and a step takes {step}"
            f"{': the host sets the pace' * host}." * gpu,
            f"The loader, timed separately in the I/O task, takes {share} % of an epoch." * gpu,
        )

    def line(self, layers: str, said: str, batches: str) -> Entries:
        """A row of the table."""
        row = self.site.row(self.table, layers=layers, batches=batches)
        first = self.site.gpu and batches == "per_sample"
        return [
            said if self.site.gpu else f"{said}, {so_many(layers, 'layer')}",
            *(as_cell(row, column) for column in ("homework_clock_s", "first_epoch_s", "epoch_s")),
            as_cell(row, "peak_gib"),
            printed("single_gpu", "training_s", OF_001) if first else NOTHING,
        ]


class RankMethods(Problem):
    """Ways to find rank and local rank, and binding."""

    name, heading = "polaris_2", "2. Rank Counting Methods"
    details = ("polaris.rank_methods", "polaris.rank_bindings")
    PUBLISHED = {MPI4PY: (OF_000, "mpi4py_split_type"), MODULO: (OF_001, "mpi4py_modulo")}  # noqa: RUF012

    def _prepare(self, site: Site) -> None:
        own = ("PALS", "Open MPI", "torchrun") if site.gpu else ("Open MPI", "torchrun", "Slurm")
        self.methods = (MPI4PY, MODULO, *own)  # as the rows are labelled
        self.ranks = max((int(row["world_size"]) for row in site.rows(self.table)), default=RANKS)
        self.launches = {method: launched for method in self.methods if (launched := self.launch(method))}
        self.as_published = site.gpu and self.ranks == RANKS

    def parts(self) -> Iterator[Part]:
        """By method, the binding below; who agrees, and how long each takes."""
        gpu, count = self.site.gpu, self.ranks
        names = ("epochs", "samples", "batch")
        epochs, samples, batch = (" and ".join(self.site.levels(self.table, name)) for name in names)
        size = f", {so_many(epochs, 'epoch')} of {samples} samples, batch {batch} per rank" if batch else ""
        yield Table(
            "Training by rank counting method.",
            f"Our DDP in FP32, {count} ranks{size}; one run each, slowest rank, host clock with synchronise, after "
            f"warm-up steps; bound: each rank to its part of the cores{' nearest to its GPU' * gpu}, in epochs between "
            "the others; the sources' clocks start before the first step.",
            ["Method", "Launcher", "Ranks", "Local ranks", "Time (s)", "Time, bound (s)", "published (s)"],
            [self.line(method) for method in self.methods],
            self.binding(),
        )
        launched = [ranks[0] for ranks in self.launches.values()]
        times, bound = ([figure(row, name) for row in launched] for name in ("training_s", "bound_training_s"))
        ratios = [tied.over(free) for tied, free in zip(bound, times, strict=True)]
        change = max((one.of(100 * abs(one.value - 1)) for one in ratios), key=lambda one: one.value, default=NO_FIGURE)
        first = next(iter(self.launches.get(MODULO, [])), None)
        single = self.site.row(
            self.table, method=NAMES[MODULO], launcher=(first or {}).get("launcher", ""), world_size="1"
        )
        alone, several = figure(single, "training_s"), figure(first, "training_s")
        faster, beside = alone.over(several), " (001: 3.64)" * self.as_published
        yield Answer(
            self.agree(),
            f"Training takes {from_to(*ends(times))} s.",
            f"Binding changes it by at most {change} %, in one run each.",
            f"By {MODULO} it is {faster} times as fast as by one rank{beside}.",
        )
        said = f"The Polaris training takes {alone} s by one rank and {several} by {count}, {faster} times as fast."
        yield Finding(17, "polaris", said)

    def launch(self, method: str) -> list[Row]:
        """The ranks of the first launch by this method that is ok."""
        rows = self.site.rows(self.table, method=NAMES.get(method, method), world_size=str(self.ranks), status="ok")
        found = [row for row in rows if row["used_device"].startswith(self.site.device)]
        return [row for row in found if row["launcher"] == found[0]["launcher"]]

    def line(self, method: str) -> Entries:
        """A row of the table."""
        launched = self.launches.get(method)
        asked = {"method": NAMES.get(method, method), "world_size": str(self.ranks)}
        row = launched[0] if launched else self.site.row(self.table, **asked)
        # Others were launched without a GPU: this one was not asked for.
        if entry(row, "reason") == "no CUDA device" and self.launches:
            row = None
        time = as_cell(row, "training_s")
        source, name = self.PUBLISHED.get(method, ("", "")) if self.as_published else ("", "")
        return [
            method,
            entry(row, "launcher", NOTHING),
            *(word(span([one[of] for one in launched])) if launched else time for of in ("rank", "local_rank")),
            time,
            as_cell(row, "bound_training_s"),
            printed("rank_methods", "training_s", source, method=name),
        ]

    def binding(self) -> str:
        """A list of ranks with their cores, as 000 has it."""
        asked, bound = ("list:0,1:8,9:16,17:24,25", "000's list") if self.site.gpu else ("even", "even")
        lines = []
        for row in self.site.rows("polaris.rank_bindings", machine="this machine", cpu_bind=asked, status="ok"):
            cores = f"Core{'s' * ('-' in row['asked_cores'] or ',' in row['asked_cores'])} {row['asked_cores']}"
            near = "no GPU" if row["gpu"] == "no GPU" else f"GPU {row['gpu']}, {row['nearness']}"
            lines.append(f"* Rank {row['rank']}: mask {row['granted_mask']} ({cores}), {near}")
        return "\n".join([f"Binding granted in a separate test ({bound}):", "", *lines]) if lines else ""

    def agree(self) -> str:
        """How many methods give each rank a place of its own, in order."""
        places = [str(place) for place in range(self.ranks)]
        given = {method: [(row["rank"], row["local_rank"]) for row in rows] for method, rows in self.launches.items()}
        wrong = [method for method, ranks in given.items() if ranks != [(place, place) for place in places]]
        count = len(given) - len(wrong)
        give = "methods give" if count != 1 else "method gives"
        text = f"{count} {give} ranks {span(places)} and local ranks {span(places)}."
        return f"{text} Not so: {'; '.join(wrong)}." if wrong else text * bool(given)


def span(numbers: Sequence[str]) -> str:
    """0-3 for numbers that follow each other, else all of them."""
    start = int(numbers[0])
    if list(numbers) == [str(start + place) for place in range(len(numbers))] and len(numbers) > 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(numbers)


class TensorDimensions(Problem):
    """Wider samples, without and with a wider model."""

    name, heading = "polaris_3", "3. Tensor Dimensions"
    details = ("polaris.tensor_dims",)
    EPOCHS = "5"
    COLUMNS = ("training_s", "allocated_gib", "peak_gib")

    def _prepare(self, site: Site) -> None:
        # Features and d_model: the model's default twice, then both.
        self.widths = [("512", "512"), ("1024", "512"), ("1024", "1024"), ("4096", "4096")]
        if not site.gpu:
            rows = site.rows(self.table, dtype="fp32", weights="fp32")
            found = list(dict.fromkeys((row["features"], row["d_model"]) for row in rows if row["status"] in OF_GRID))
            self.widths = found if len(found) > 1 else [("16", "16"), ("32", "16"), ("32", "32"), ("128", "128")]
        self.rows = [row for one in self.widths if ok(row := self.row(*one))]

    def parts(self) -> Iterator[Part]:
        """By features and d_model; what raises an error, what wider models need."""
        widths = self.widths
        unlike = self.unlike()
        mark = "‡" * bool(unlike)
        batch = self.site.batch_of(self.table, "32")
        found = [self.EPOCHS] if self.site.gpu else [row["epochs"] for row in self.rows] or [self.EPOCHS]
        epochs = f"{found[0]} epochs" + (f" ({found[-1]} with d_model set)" if found[0] != found[-1] else "")
        yield Table(
            f"Training by width{mark}.",
            f"FP32, {epochs}, batch {batch}, default d_model {widths[0][1]}, one run each, host clock with "
            f"synchronise; allocated: after training, peak: of allocated memory{unlike}.",
            ["src", "d_model", "Time (s)", "Allocated memory (GB)", "Peak memory (GB)", "001"],
            [self.line(place) for place in range(len(widths))],
        )
        features, width = widths[1]
        error = f"With the default d_model {width}, {features} features raise an error, whatever the memory."
        needs: list[str] = []
        for wide, _ in widths[2:]:
            row = self.row(wide, wide)
            time, peak = figure(row, "training_s"), figure(row, "peak_gib")
            each = time.of(time.value / figure(row, "epochs").value)
            needs.append(f"{wide} need {peak} GB and {each} s per epoch")
        yield Answer(
            error if entry(self.row(features, width), "status") == "failed" else "",
            f"With a matching d_model, {', '.join(needs)}{mark}." if needs else "",
        )

    def line(self, place: int) -> Entries:
        """A row of the table; that the second one fails is its result."""
        features, width = self.widths[place]
        row = self.row(features, width)
        cells = [as_cell(row, column) for column in self.COLUMNS]
        if place == 1:
            cells = [Cell(one.text) if one.text == "failed" else one for one in cells]
        return [
            f"({entry(row, 'samples', SAMPLES)},1,{features})",
            "default" if place < 2 else width,
            *cells,
            self.published(place),
        ]

    def row(self, features: str, width: str) -> Row | None:
        """A training in FP32."""
        return self.site.row(self.table, features=features, d_model=width, dtype="fp32", weights="fp32")

    def unlike(self) -> str:
        """How the rows differ from the homework's; levels of preset cpu do not count."""
        if not self.rows or not self.site.gpu:
            return ""
        fewer = [row for row in self.rows if row["epochs"] != self.EPOCHS]
        widths = " and ".join(row["d_model"] for row in fewer)
        return ONE_RANK + (
            f", {fewer[0]['epochs']} epochs in place of {self.EPOCHS} at d_model {widths}" if fewer else ""
        )

    def published(self, place: int) -> str:
        """001's figures of the model's default width."""
        if not self.site.gpu or place > 1:
            return NOTHING
        time = printed("tensor_dims", "training_s", OF_001, d_model=1024 if place else 512)
        return time if place else f"{time}, {printed('tensor_dims', 'memory_allocated_gib', OF_001, d_model=512)} GiB"


class CrossNode(Problem):
    """DDP's communication across nodes and within one."""

    name, heading = "polaris_4", "4. Cross-Node Communication Costs"
    details = (
        "polaris.communication",
        "polaris.communication_nodes",
        "polaris.communication_ranks",
        "polaris.communication_trainings",
    )
    figure = "polaris.communication_wait"
    TOTAL, TRANSFER, WAITING = "Total communication time (ms)", "Of it transfer (ms)", "Of it waiting (ms)"
    METRICS = (
        ("Total Comm. Time", TOTAL, " ms"),
        ("Comm. Overhead", "Share of all device time (%)", " %"),
        ("Avg Latency", "Mean latency (ms)", " ms"),
    )

    def _prepare(self, site: Site) -> None:
        self.backend, self.library = ("nccl", "NCCL") if site.gpu else ("gloo", "Gloo")
        nodes = {"backend": self.backend, "between": "two nodes of a cluster"}
        self.cluster = any(site.rows("polaris.communication_nodes", status="ok", **nodes))
        self.link = entry(self.rank(0), "link")  # what the bytes go through on one machine
        # What stands behind figures across nodes, and what behind a title or sentence whose figures all have it.
        self.marks = ("", "†") if self.link.startswith("TCP") else ("†", "")
        if self.cluster:
            self.marks = ("", "†" * site.emulated)

    def parts(self) -> Iterator[Part]:
        """000's metrics; transfer and waiting apart. The figure shows one machine."""
        at, end = self.marks
        rows: list[Entries] = []
        for said, metric, unit in self.METRICS:
            row = self.row(metric)
            inter, intra = as_cell(row, "inter", unit=unit, mark=at), as_cell(row, "intra", unit=unit)
            rows.append(
                [said, inter, intra, as_cell(row, "impact", 1, "×", at) if decided(row) else Cell("within noise")]
            )
        ran, model = self.row(self.TOTAL), "DDP of nn.Transformer"
        if ok(ran):
            layers = f"{so_many(ran['layers'], 'layer')}, d {ran['features']}"
            model = f"{model} in {ran['dtype'].upper()}, {layers}, batch {ran['batch']} per rank"
        transfer, waiting, total, calls = (
            [figure(self.row(metric), column) for column in ("inter", "intra")]
            for metric in (self.TRANSFER, self.WAITING, self.TOTAL, "Calls")
        )
        count = replace(calls[0], exact=True) if calls[0].value == calls[1].value else NO_FIGURE
        # 001's training of one rank is beside ours.
        levels = {"backend": "nccl", "profiled": "yes, the process's first profile"}
        one = self.site.row("polaris.communication_trainings", **levels)
        own, epochs = figure(one, "epoch_s"), so_many(entry(one, "epochs"), "epoch")
        without = self.site.value("polaris.communication_trainings", "epoch_s", backend="nccl", profiled="no")
        here = f"; here {own}, with one profile in {epochs}, and {without} without" if own and self.site.gpu else ""
        yield Table(
            f"Communication of DDP across nodes and within{end}.",
            f"{model}, 2 ranks, {self.library}: rank 0 over {entry(ran, 'active', '2')} profiled steps, median ± "
            f"half IQR of {entry(ran, 'turns', '6')} turns, torch profiler; overhead: share of all device time; "
            f"transfer: the shorter time of both ranks, call by call{self.links()}.",
            ["Metric", "Task 4 (Inter-Node)", "Task 5 (Intra-Node)", "Impact"],
            rows,
            f"Transfer / waiting for the other rank: {transfer[0]!s} / {waiting[0]!s} ms across{at}, "
            f"{transfer[1]!s} / {waiting[1]!s} ms within{end}; {count} calls each.",
            "Published: 000: 677.21 and 6.97 ms (97×), 93.60 and 14.40 %, 30.78 and 0.44 ms, 22.0 and 15.8 calls. "
            f"001: one rank, profiled, 10 epochs in 20.68 s, 2.07 per epoch{here}.",
        )
        row = self.row(self.TRANSFER)
        ratio = f"a factor of {figure(row, 'impact')}{at}" if decided(row) else "a difference within noise"
        across = f"Transfer takes {transfer[0]} ms across nodes{at} and {transfer[1]} within one"
        both = ", a difference within noise" * (not decided(self.row(self.TOTAL)))
        waited = f"With waiting, rank 0's takes {total[0]} ms across{at} and {total[1]} within{both}{end}."
        if not self.cluster:
            waited += f" The other rank's takes {figure(self.rank(1), 'total_ms')} ms within{end}."
        why = "A rank waits for the other to arrive; that time says nothing about the link."
        yield Answer(
            f"{across}, {ratio}{end}.",
            waited,
            Why(why, all(waiting) and any(float(one.quoted) for one in waiting)),
        )
        if not self.cluster:
            yield Title(f"{across}{' (within noise)' * (not decided(row))}; the rest of communication is waiting{end}")

    def row(self, metric: str) -> Row | None:
        """A metric, of a cluster's nodes where they were measured."""
        levels = {"backend": self.backend, "implementation": "torch_ddp", "metric": metric}
        if self.cluster:
            return self.site.row("polaris.communication_nodes", between="two nodes of a cluster", **levels)
        return self.site.row(self.table, **levels)

    def rank(self, rank: int) -> Row | None:
        """A rank's figures within one machine."""
        levels = {"backend": self.backend, "implementation": "torch_ddp", "placement": "intra"}
        return self.site.row("polaris.communication_ranks", rank=rank, **levels)

    def links(self) -> str:
        """The set-up's end: what stands for the nodes."""
        if self.cluster:
            return "; † TCP for both, nodes are name spaces of one machine" if self.site.emulated else "; two nodes"
        if self.link.startswith("TCP"):
            return "; † one machine, TCP over loopback for both, so a ratio near 1 is expected"
        within = "NVLink" if "(NV" in self.link else self.link
        return f"; † two nodes are one machine with TCP over loopback, within is {within}"


def decided(row: Row | None) -> bool:
    """Whether the turns tell which of both is longer; true without a figure, which says so itself."""
    return entry(row, "impact_verdict") != "cannot tell"


class Formats(Problem):
    """Training from memory and from files."""

    name, heading = "polaris_5", "5. I/O Format Comparison"
    details = (
        "polaris.io_formats",
        "polaris.io_parts",
        "polaris.io_reads",
        "polaris.io_chunks",
        "polaris.io_loader",
    )
    figure = "polaris.io_times"
    FORMATS = {  # noqa: RUF012
        "memory": "In-Memory",
        "hdf5_gzip": "HDF5 compressed",
        "hdf5": "HDF5 uncompressed",
        "pt": "PyTorch .pt",
        "npz_compressed": "NumPy .npz compressed",
        "npz": "NumPy .npz uncompressed",
        "npy": "NumPy .npy files",
    }

    def parts(self) -> Iterator[Part]:
        """By format; ratios to memory, what a sample inflates, what gzip saves."""
        memory, packed = self.row("memory"), self.row("hdf5_gzip")
        small, plain = (figure(row, "size_mib") for row in (packed, self.row("hdf5")))
        mark = "‡" if self.site.gpu and memory is not None else ""
        any_row = memory or self.site.row("polaris.io_formats")
        batch = entry(any_row, "batch", "32")
        samples, _, epochs = entry(any_row, "training_samples", "512 of 2048 × 5").rpartition(" × ")
        spread = "; ratio ± half of its interquartile range over a run's epochs" if epochs != "1" else ""
        marked = "‡ one rank with a quarter of the samples, without DDP and profiler; 001 ran 4 ranks under both"
        yield Table(
            "Training from memory and from files.",
            f"{so_many(epochs, 'epoch')} of {samples} samples, batch {batch}, {self.site.one_device}, files warm in "
            f"the page cache, one run each, host clock around the epochs{spread}{f'; {marked}' if mark else ''}.",
            ["Format", "Time (s)", "Size (MB)", "vs in-memory", "001 (s)"],
            [self.line(name, mark) for name in self.FORMATS],
        )
        others = list(self.FORMATS)[2:]
        most = from_to(*ends(replace(figure(self.row(name), "against_memory"), single=True) for name in others))
        shares = [figure(self.row(name, "polaris.io_parts"), "loader_share_percent") for name in others]
        share = ends(shares)[1] if all(shares) else NO_FIGURE
        read = self.row("hdf5_gzip", "polaris.io_reads")
        chunks = figure(read, "decoded_kib").over(figure(read, "sample_kib"))
        count = int(samples.split(" ")[0] or 1)
        waited = {name: figure(self.row(name, "polaris.io_parts"), "loader_wait_s", 1000) for name in self.FORMATS}
        waits = {name: wait.of(wait.value / count) for name, wait in waited.items()}  # for a sample, ms
        before = all(waits[name].value < waits["hdf5"].value for name in ("pt", "npz_compressed", "npz", "npy"))
        parts = {name: self.row(name, "polaris.io_parts") for name in ("memory", *others)}
        loading, computing = (
            max(abs(figure(parts[name], column).value - figure(parts["memory"], column).value) for name in others)
            for column in ("loader_wait_s", "compute_s")
        )
        more = ", the model's time differs more" * (computing > loading)
        yield Answer(
            f"Compressed HDF5 takes {figure(packed, 'against_memory')} times as long as memory{mark}.",
            f"Each sample decompresses whole chunks, {chunks} times its own bytes." if chunks.value >= 2 else "",
            f"Others take {most} times as long; loading takes at most {share} % of an epoch{mark}{more}.",
            f"gzip saves {plain.of(100 * (1 - small.value / plain.value), small)} % of HDF5's size.",
            Why("PyTorch and NumPy files are read whole before the clock starts.", before),
        )
        longer = figure(packed, "against_memory")
        said = f"Compressed HDF5 takes {longer} times as long as memory"
        rest_takes = f"loading other formats takes at most {share} % of an epoch{mark}"
        yield Finding(13, "polaris", f"{said}; {rest_takes}." if longer.value > 1 else "")
        rest = [wait for name, wait in waits.items() if name != "hdf5_gzip"]
        yield Title(
            f"From warm files, a sample takes the loader {waits['hdf5_gzip']} ms in HDF5 with gzip, at most "
            f"{ends(rest)[1] if all(rest) else NO_FIGURE} ms in every other format"
        )

    def line(self, name: str, mark: str) -> Entries:
        """A row of the table."""
        row, gpu = self.row(name), self.site.gpu
        return [
            self.FORMATS[name],
            as_cell(row, "training_total_s", mark=mark),
            NO_SUCH_THING if name == "memory" else as_cell(row, "size_mib", MIB_AS_MB),
            as_cell(row, "against_memory", unit="x", mark=mark),
            printed("io_formats", "training_s", OF_001, format=name) if gpu else NOTHING,
        ]

    def row(self, name: str, table: str = "polaris.io_formats") -> Row | None:
        """A format's row, files warm."""
        return self.site.row(table, format=name, cache="warm")


class DataTypes(Problem):
    """Wide models in BF16, and autocast by length and width."""

    name, heading = "polaris_6", "6. Large Tensors and Data Types"
    details = ("polaris.dtypes",)
    figure = "polaris.dtypes_by_length"
    SCALE, DTYPES = TensorDimensions.table, "polaris.dtypes"

    def parts(self) -> Iterator[Part]:
        """000's comparison of both tasks, in weights of their own dtype; then 001's table."""
        site = self.site
        (narrow, wide), (few, many) = ("1024", "4096"), (SAMPLES, "10000")
        if not site.gpu:
            widths = site.levels(self.SCALE, "d_model", dtype="bf16") or ["32", "128"]
            samples = site.levels(self.SCALE, "samples", dtype="bf16") or ["64", "128"]
            widths += site.levels(self.SCALE, "d_model", dtype="bf16", samples=samples[-1])
            (narrow, wide), (few, many) = (widths[0], widths[-1]), (samples[0], samples[-1])

        def row(width: str, dtype: str, samples: str) -> Row | None:
            return site.row(self.SCALE, features=width, d_model=width, dtype=dtype, weights=dtype, samples=samples)

        tasks = ((narrow, "fp32", few), (wide, "bf16", many))
        rows = [row(*task) for task in tasks]
        labels = [(width, dtype, f"{count} samples") for width, dtype, count in tasks]
        settings = (row(*task) for task in (tasks[0], (wide, "fp32", few), (narrow, "bf16", few), (wide, "bf16", few)))
        base, wider, narrow_half, half = (figure(one, "peak_gib") for one in settings)
        yield Table(
            "Comparison Table.",
            f"One rank, batch {site.batch_of(self.SCALE, '32')}, weights of the same dtype; "
            "peak of allocated memory, throughput of the slowest and the fastest of "
            f"{entry(rows[0], 'epochs', '2')} epochs, one run each.",
            ["Metric", "Task 3 (Baseline)", "Task 6 (Scale-Up)"],
            [
                *zip(("Embedding Dim", "Data Type", "Dataset Size"), *labels, strict=True),
                ["Peak Memory", *(as_cell(one, "peak_gib", unit=" GB") for one in rows)],
                ["Throughput", *map(throughput, rows)],
            ],
            f"Peak, one change at a time: {wider} GB at {wide} in fp32, {narrow_half} at {narrow} in bf16, {half} at "
            f"{wide} in bf16 with {few} samples.",
            "Published (000): 4.05 GB (unexplained), 200 - 384 samp/s; 15.78 GB, 340 - 370 samp/s.",
        )
        larger = figure(rows[1], "peak_gib")
        same = half.quoted == larger.quoted
        end = "more samples do not change it" if same else f"{larger} with {many} samples in place of {few}"
        yield Answer(
            f"The peak is {base} GB at width {narrow} in fp32, {wider} at {wide}, {half} there in bf16; {end}."
        )
        yield from self.autocast()

    def autocast(self) -> Iterator[Part]:
        """001's table: three dtypes by length and by width."""
        site = self.site
        base, wide, lengths = "512", ["2048", "4096"], ["20", "50", "100"]
        if not site.gpu:
            base, *wide = site.levels(self.DTYPES, "d_model") or ["32", "64"]
            lengths = site.levels(self.DTYPES, "target_length") or lengths
        short, long, widest = lengths[0], lengths[-1], (wide or [base])[-1]
        longest = f"Large_Seq_{long}" if lengths[1:] else "Baseline"
        kinds = [(f"Large_Seq_{length}", base, length) for length in lengths[1:]]
        kinds += [(f"Large_Feature_{width}", width, short) for width in wide]
        dtypes = ("fp32", "fp16", "bf16")
        lines = [("Baseline", base, short, dtype) for dtype in (dtypes[:1] if lengths[1:] else dtypes)]
        lines += [(*kind, dtype) for kind in kinds for dtype in dtypes]
        unlike = self.unlike(base, widest, short)
        mark = "‡" * bool(unlike)
        yield Table(
            f"Training by length, width and data type{mark}.",
            f"{entry(site.row(self.DTYPES), 'epochs', '3')} epochs including start-up"
            f", batch {entry(site.row(self.DTYPES), 'batch', '16')}, autocast, one run each, host clock; Large_Feature "
            f"at length {short}; peak of allocated memory{unlike}.",
            ["Configuration", "Data type", "Time (s)", "Memory (GB)", "001 (s, GiB)"],
            [self.line(*one) for one in lines],
        )
        longer, wider = (self.row(*at) for at in ((base, long), (widest, short)))
        peak, wide_peak = (replace(figure(row, "memory_ratio"), single=True) for row in (longer, wider))
        takes, fp16 = (self.takes(row) for row in (longer, self.row(base, long, "fp16")))
        wide_takes = self.takes(wider)
        same = takes == wide_takes
        at, peaks = f"take {takes}", f"Its peak is {peak}"
        if wide:
            wider_one = f"Large_Feature_{widest} (length {short})"
            at = f"and {wider_one} {at}" if same else f"{at}, of {wider_one} {wide_takes}"
            peaks = f"Their peaks are {peak} and {wide_peak}"
        yield Answer(
            f"In BF16 later epochs of {longest} {at}.",
            f"{peaks} of FP32's{mark}.",
            self.start(lines, mark),
            Why(
                "Autocast leaves weights, gradients and optimizer state, most of a wide model's memory, in FP32.",
                bool(wide) and wide_peak.value >= 0.95,
            ),
        )
        at = f"At length {long}, width {base}, one run each, the {entry(longer, 'epoch_s_n')} later epochs"
        yield Title(f"{at} take {takes} in BF16, {fp16} in FP16{mark}")

    @staticmethod
    def takes(row: Row | None) -> str:
        """Its later epochs against those in FP32."""
        ratio = replace(figure(row, "time_ratio"), single=True)
        return "FP32's time within noise" if entry(row, "epochs_apart") == "overlap" else f"{ratio} times FP32's"

    def start(self, lines: Sequence[tuple[str, str, str, str]], mark: str) -> str:
        """Where the first epoch is more than half of the time: the configuration of the longest one."""
        found = []
        for name, width, length, dtype in lines:
            row = self.row(width, length, dtype)
            whole, first, later = (figure(row, one) for one in ("training_s", "first_epoch_s", "epoch_s"))
            if 2 * first.value > whole.value:
                found.append((first.value, name, dtype.upper(), first, later))
        _, name, dtype, first, later = max(found, default=(0.0, "", "", NO_FIGURE, NO_FIGURE))
        dtypes = " and ".join(one[2] for one in found if one[1] == name)
        whose = f"{dtype}: " * (dtypes != dtype)
        return f"Most of {name}'s time in {dtypes} is its first epoch ({whose}{first} s, then {later}){mark}."

    def row(self, width: str, length: str, dtype: str = "bf16") -> Row | None:
        """A training."""
        return self.site.row(self.DTYPES, d_model=width, target_length=length, dtype=dtype)

    def line(self, said: str, width: str, length: str, dtype: str) -> Entries:
        """A row of 001's table."""
        row = self.row(width, length, dtype)
        time, memory = as_cell(row, "training_s"), as_cell(row, "peak_gib")
        return [said, dtype.upper(), time, memory, self.published(width, length, dtype)]

    def published(self, width: str, length: str, dtype: str) -> str:
        """001's time and memory, or its word for both."""
        if not self.site.gpu:
            return NOTHING
        if width != "512":
            return printed("dtypes", "training_s", OF_001, d_model=int(width))
        levels: dict[str, str | int] = {"d_model": int(width), "seq_len": int(length), "dtype": dtype}
        return ", ".join(printed("dtypes", metric, OF_001, **levels) for metric in ("training_s", "peak_memory_gib"))

    def unlike(self, base: str, widest: str, length: str) -> str:
        """How rows differ from the homework's; levels of preset cpu do not count."""
        found = [row for width in (base, widest) if (row := self.row(width, length)) is not None]
        if not self.site.gpu or len(found) < 2:
            return ""
        few, fewer = (row["samples"] for row in found)
        wider = f" (wider models: {fewer})" if fewer != few else ""
        return ONE_RANK + (f", {few} samples{wider} in place of {SAMPLES}" if {few, fewer} != {SAMPLES} else "")


def throughput(row: Row | None) -> Cell:
    """From the slowest epoch to the fastest."""
    lowest, highest = (figure(row, column) for column in ("lowest_per_s", "highest_per_s"))
    return Cell(f"{lowest} - {highest} samp/s") if lowest and highest else as_cell(row, "lowest_per_s")


PROBLEMS = (SingleGpu, RankMethods, TensorDimensions, CrossNode, Formats, DataTypes)
