"""CS336 assignment 2 (systems), spring 2025, version 1.0.4: the problems that several devices answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from perfscribe.report.problem import Answer, Problem, Table
from perfscribe.report.site import (
    NO_SUCH_THING,
    NOT_MEASURED,
    NOTHING,
    Cell,
    Missing,
    Row,
    Site,
    as_cell,
    known,
    label,
    of,
    published,
    some,
)
from perfscribe.show import references
from perfscribe.show.rounding import GIB_AS_GB, Figure

WORLDS = ("2", "4")
LINK = "[Table](#problem-naive_ddp_benchmarking)"
NO_FIT = "no fit"  # begins a cell of ddp_overhead where no exposed time is above noise


def devices(site: Site) -> str:
    """What a world is counted in."""
    return "GPUs" if site.gpu else "processes"


def training(site: Site) -> dict[str, str]:
    """Levels of the model that DDP and sharding train."""
    if site.gpu:
        return {"size": "xl", "seq_len": "128", "batch": "16", "dtype": "fp32"}
    return {"size": "nano", "dtype": "fp32"}


def found(rows: Sequence[Row]) -> Row:
    """The first row that is ok; Missing where there is none."""
    for row in rows:
        if row["status"] == "ok":
            return row
    raise Missing("no row")


def ran(site: Site, table: str) -> list[Row]:
    """Rows of that model that are ok."""
    return [row for row in site.rows(table, **training(site)) if row["status"] == "ok"]


def setup(site: Site, table: str, world: str = "") -> str:
    """Model, precision, context, devices, global batch and backend of a table's rows."""
    row = found(ran(site, table))
    model = [spelt(row["size"]), row["dtype"].upper(), f"context {row['seq_len']}"]
    on = [f"{world} {devices(site)}"] if world else []
    return ", ".join([*model, *on, f"global batch {row['batch']}", spelt(row["backend"])])


def clock(site: Site) -> str:
    """How steps and calls are timed."""
    return "host clock with synchronise" if site.gpu else "host clock"


def spelt(name: str) -> str:
    """A level as text has it."""
    return {"xl": "XL", "nccl": "NCCL", "gloo": "Gloo"}.get(name, name)


def within_noise(one: Figure, other: Figure) -> bool:
    """Whether two figures differ by less than their spreads."""
    return abs(one.value - other.value) < (one.spread or 0.0) + (other.spread or 0.0)


Group = Sequence[Callable[[], Figure]]


def counted(sentences: Sequence[Group]) -> str:
    """Status of a problem without a table: the figures of its sentences, filled of all; nothing where none is."""
    filled: list[Figure] = []
    for figures in sentences:
        try:
            filled += [figure() for figure in figures]
        except Missing:
            continue
    marked = sum("‡" in figure.mark for figure in filled)
    status = f"{len(filled)} of {sum(map(len, sentences))}"
    return f"{status}{f', {marked}‡' if marked else ''}" if filled else ""


class DistributedCommunication(Problem):
    """All-reduce by backend, size and processes."""

    name = "distributed_communication_single_node"
    heading = "Problem (distributed_communication_single_node)"
    details = ("cs336.all_reduce",)
    figure = "cs336.all_reduce_by_size"
    ALL_REDUCE = "cs336.all_reduce"

    def tables(self) -> list[Table]:
        """The problem's table."""
        last = self.messages()[-1]
        header = ["Backend", "world_size", *(self.short(one) for one in self.messages())]
        return [
            Table(
                "All-reduce of FP32 arrays, ms per call.",
                f"Median ± half IQR of {self.calls()}, slowest rank, host clock"
                + (" with synchronise; Gloo on CPUs, NCCL on GPUs." if self.site.gpu else "; Gloo on CPUs."),
                [*header, f"002 {self.short(last)} (ms)"],
                [
                    [
                        label(backend),
                        label(world),
                        *(as_cell(self.row(backend, world, one), "host_ms") for one in self.messages()),
                        label(self.of_002(backend, world, last)),
                    ]
                    for backend, worlds in self.backends().items()
                    for world in worlds
                ],
            )
        ]

    def answers(self) -> list[Answer]:
        """What is asked."""
        return [Answer("", [self.largest, self.growth, self.more_devices])]

    def title(self) -> str:
        """What the figure shows."""
        first, last = self.messages()[0], self.messages()[-1]
        if not self.site.gpu:
            grown = self.time("gloo", last).over(self.time("gloo", first)).quoted
            ends = f"{self.short(last)} as for {self.short(first)}"
            return f"Gloo takes {grown} times as long for {ends} ({self.most()} processes)"
        ratios = [self.time("gloo", one).over(self.time("nccl", one)).quoted for one in (last, first)]
        return (
            f"NCCL is {ratios[0]} times as fast as Gloo at {self.short(last)}, {ratios[1]} at {self.short(first)} "
            f"({self.most()} processes)"
        )

    def backends(self) -> Mapping[str, Sequence[str]]:
        """Rows of the table."""
        return {"gloo": ("2", "4", "6"), "nccl": ("2", "4", "6")} if self.site.gpu else {"gloo": ("2", "4")}

    def messages(self) -> Sequence[str]:
        """Sizes, as the table of measurements names them."""
        return ("1 MB", "10 MB", "100 MB", "1 GB") if self.site.gpu else ("1 MB", "3 MB", "10 MB")

    def short(self, message: str) -> str:
        """A size as the handout writes it."""
        return message.replace(" ", "")

    def row(self, backend: str, world: str, message: str) -> Row | None:
        """The measurement of a cell. Gloo's arrays are on CPUs, also where there are GPUs."""
        device = "cuda" if backend == "nccl" else "cpu"
        return self.site.row(self.ALL_REDUCE, backend=backend, device=device, world_size=world, message=message)

    def calls(self) -> str:
        """How many calls, and where there are fewer."""
        counts: dict[tuple[str, str], set[int]] = {}
        for backend, worlds in self.backends().items():
            for message in self.messages():
                rows = [self.row(backend, world, message) for world in worlds]
                counts[backend, message] = {int(row["time_ms_n"]) for row in rows if row and row["status"] == "ok"}
        usual = Counter(n for several in counts.values() for n in several).most_common(1)
        if not usual:
            return "20"
        fewer = [
            f"{spelt(backend)} at {self.short(message)}: of {' to '.join(str(n) for n in sorted(several))}"
            for (backend, message), several in counts.items()
            if several and several != {usual[0][0]}
        ]
        return f"{usual[0][0]} ({'; '.join(fewer)})" if fewer else f"{usual[0][0]}"

    def of_002(self, backend: str, world: str, message: str) -> str:
        """002's slowest rank, ms."""
        number, unit = message.split()
        size = int(number) * (1024 if unit == "GB" else 1)
        ranks = references.find(
            references.load("all_reduce"), "time_ms", backend=backend, world_size=int(world), size_mb=size
        )
        times = [one.value for one in ranks if one.source == "cs336-writeup-002" and one.value is not None]
        return str(Figure(max(times))) if times else NOTHING

    def fastest(self) -> str:
        """The backend that answers speak of."""
        return "nccl" if self.site.gpu else "gloo"

    def most(self) -> str:
        """Most devices on which that backend ran."""
        last = self.messages()[-1]
        name = self.fastest()
        worlds = [world for world in self.backends()[name] if of(self.row(name, world, last), "host_ms")]
        if not worlds:
            raise Missing("world_size")
        return worlds[-1]

    def time(self, backend: str, message: str, world: str = "") -> Figure:
        """Time of a call, ms; on most devices where none are given."""
        figure = of(self.row(backend, world or self.most(), message), "host_ms")
        if figure is None:
            raise Missing(f"{backend}, {message}")
        return figure

    def largest(self) -> str:
        """The largest size with each backend."""
        last, name = self.messages()[-1], self.fastest()
        said = f"On {self.most()} {devices(self.site)} {spelt(name)} takes {self.time(name, last).quoted} ms"
        gloo = f", Gloo {self.time('gloo', last).quoted}" if self.site.gpu else ""
        return f"{said} for {self.short(last)}{gloo}."

    def growth(self) -> str:
        """How the last size's time compares with that of the one before."""
        before, last = self.messages()[-2:]
        grown = self.time(self.fastest(), last).over(self.time(self.fastest(), before)).quoted
        of_whom = spelt(self.fastest())
        return f"From {self.short(before)} to {self.short(last)} {of_whom}'s time grows {grown} times."

    def more_devices(self) -> str:
        """Most devices against the fewest."""
        last, few = self.messages()[-1], self.backends()[self.fastest()][0]
        if self.most() == few:
            raise Missing("more devices")
        one, other = self.time(self.fastest(), last, few), self.time(self.fastest(), last)
        said = f"{spelt(self.fastest())} takes {self.short(last)} on {self.most()} {devices(self.site)}"
        if within_noise(one, other):
            return f"{said} and on {few} the same time within noise."
        change = other.of(100 * (other.value / one.value - 1), one)
        by = change.of(abs(change.value)).quoted
        return f"{said} {by} % {'longer' if change.value > 0 else 'less long'} than on {few}."


class Checked(Problem):
    """A problem of code alone: whether weights after training agree with those of one process."""

    IMPLEMENTATION = ""
    CHECK = "cs336.ddp_check"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        rows = self.rows()
        self.by = ("checked" if all(map(self.right, rows)) else "check failed") if rows else ""

    def answers(self) -> list[Answer]:
        """What is asked."""
        return [Answer("", [self.apart])]

    def rows(self) -> list[Row]:
        """All checks that ran."""
        levels = {**training(self.site), "implementation": self.IMPLEMENTATION}
        return [row for row in self.site.rows(self.CHECK, **levels) if row["status"] in ("ok", "failed")]

    def right(self, row: Row) -> bool:
        """Whether a check is within its limit."""
        return row["status"] == "ok" and float(row["error"]) <= float(row["allowed"])

    def last(self, column: str) -> tuple[str, Row]:
        """Most ranks that were checked, and their row of the largest difference."""
        rows = [row for row in self.rows() if row["status"] == "ok"]
        most = max(some([row["world_size"] for row in rows]), key=int)
        return most, max((row for row in rows if row["world_size"] == most), key=lambda row: float(row[column]))

    def apart(self) -> str:
        """The largest difference on most ranks."""
        most, row = self.last("error")
        error, allowed = (100 * float(row[name]) for name in ("error", "allowed"))
        return (
            f"Weights after training on {most} ranks are {Figure(error)} % of their change away from those of one "
            f"process (allowed {allowed:g} %)."
        )


class NaiveDdp(Checked):
    """One all-reduce per tensor after backward."""

    name = "naive_ddp"
    heading = "Problem (naive_ddp)"
    details = ("cs336.ddp_check",)
    IMPLEMENTATION = "naive"


class OverlapIndividual(Checked):
    """One all-reduce per tensor during backward."""

    name = "ddp_overlap_individual_parameters"
    heading = "Problem (ddp_overlap_individual_parameters)"
    IMPLEMENTATION = "overlap_individual"


class OverlapBucketed(Checked):
    """One all-reduce per bucket during backward."""

    name = "ddp_overlap_bucketed"
    heading = "Problem (ddp_overlap_bucketed)"
    IMPLEMENTATION = "overlap_bucketed"


class Ddp(Problem):
    """What the benchmarks of DDP share: one table, which the first of them prints and the others quote."""

    STEPS, PHASES, TRACED, OVERHEAD = (f"cs336.ddp_{one}" for one in ("benchmark", "phases", "timeline", "overhead"))

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.by = counted(self.quoted())

    def quoted(self) -> Sequence[Group]:
        """The figures of each sentence, of a problem without a table."""
        return []

    def buckets(self) -> Sequence[str]:
        """Sizes of buckets, MB."""
        return ("1", "10", "100", "1000") if self.site.gpu else ("0.1", "1", "10")

    def row(self, implementation: str, world: str = WORLDS[0], bucket: str = "none") -> Row | None:
        """The row of an implementation."""
        levels = {**training(self.site), "implementation": implementation, "world_size": world, "bucket_mb": bucket}
        return self.site.row(self.STEPS, **levels)

    def step(self, implementation: str, column: str = "step_ms", bucket: str = "none") -> Figure:
        """A figure of the table in which DDP on two devices is, ms."""
        return known(self.row(implementation, bucket=bucket), column)

    def calls(self) -> str:
        """How many all-reduces the naive implementation makes in a step."""
        return found([row for world in WORLDS if (row := self.row("naive", world))])["all_reduces"]


class NaiveDdpBenchmarking(Ddp):
    """Steps and communication of all implementations."""

    name = "naive_ddp_benchmarking"
    heading = "Problem (naive_ddp_benchmarking)"
    details = ("cs336.ddp_benchmark", "cs336.ddp_phases", "cs336.ddp_steps")
    PUBLISHED = (
        "Published: 2 H100, TF32, same batch and context: naive 531.7 (42.8 communicating), flat 523.0, overlap 509.3, "
        "buckets 511.0, 509.0, 516.4, 512.9 ms."
    )

    def tables(self) -> list[Table]:
        """The problem's table."""
        if not ran(self.site, self.STEPS):
            return []
        shown = [(one, "none") for one in ("naive", "flat", "overlap_individual")]
        shown += [("overlap_bucketed", bucket) for bucket in self.buckets()] + [("torch_ddp", "none")]
        columns = [(one, world) for world in WORLDS for one in ("step_ms", "comm_ms", "exposed_ms")]
        return [
            Table(
                "DDP: step, communication and exposed communication, ms.",
                f"{setup(self.site, self.STEPS)}, AdamW; "
                f"median ± half IQR of {self.steps()}, {clock(self.site)}; comm: in steps that "
                "wait after each phase; exposed: step less the same step without communication.",
                ["implementation", "bucket_mb", *(f"{one} ({world} {devices(self.site)})" for one, world in columns)],
                [
                    [label(one), label(NOTHING if bucket == "none" else bucket)]
                    + [cell for world in WORLDS for cell in self.cells(one, world, bucket)]
                    for one, bucket in shown
                ],
                [self.PUBLISHED] if self.site.gpu else [],
            )
        ]

    def answers(self) -> list[Answer]:
        """What is asked."""
        return [Answer("", [self.where, self.shares, self.apart])]

    def cells(self, implementation: str, world: str, bucket: str) -> list[Cell]:
        """Step, communication and what of it is exposed. Communication is timed only where it follows backward."""
        row = self.row(implementation, world, bucket)
        after = as_cell(row, "spent_ms") if implementation in ("naive", "flat") else NO_SUCH_THING
        return [as_cell(row, "step_ms"), after, as_cell(row, "exposed_ms")]

    def steps(self) -> str:
        """How many steps in how many turns, and on how many devices there are fewer or more."""
        rows = ran(self.site, self.STEPS)
        first = rows[0]["step_ms_n"]
        others = {row["world_size"]: row["step_ms_n"] for row in rows if row["step_ms_n"] != first}
        said = "".join(f" ({world} {devices(self.site)}: of {n})" for world, n in others.items())
        return f"{first} steps{said} in {rows[0]['turns']} turns"

    def naive(self) -> list[Row]:
        """The naive implementation on as many devices as it ran on."""
        rows = [row for world in WORLDS if (row := self.row("naive", world)) and row["status"] == "ok"]
        found(rows)
        return rows

    def where(self) -> str:
        """The set-up, with rows per device."""
        row, *others = self.naive()
        batch, one = int(row["batch"]), "GPU" if self.site.gpu else "process"
        parts = [f"{batch // int(row['world_size'])} rows per {one} on {row['world_size']} {devices(self.site)}"]
        parts += [f"{batch // int(other['world_size'])} on {other['world_size']}" for other in others]
        named = f"{spelt(row['size'])}, context {row['seq_len']}"
        return f"{named}, {' and '.join(parts)}, AdamW, {spelt(row['backend'])}."

    def times(self) -> list[tuple[Figure, Figure]]:
        """Step and communication of the naive implementation, by devices."""
        return [(known(row, "step_ms"), known(row, "spent_ms")) for row in self.naive()]

    def shares(self) -> str:
        """What of a step is communication."""
        said: list[str] = []
        for row, (step, spent) in zip(self.naive(), self.times(), strict=True):
            share = f"{spent.quoted} ({spent.share(step).quoted} %)"
            if not said:
                on = f"{row['world_size']} {devices(self.site)}"
                said.append(f"On {on} a step takes {step.quoted} ms, its {self.calls()} all-reduces {share}.")
            else:
                said.append(f"On {row['world_size']} it is {step.quoted} and {share}.")
        return " ".join(said)

    def apart(self) -> str:
        """Why communication may take longer than the step."""
        if all(spent.value < step.value for step, spent in self.times()):
            raise Missing("longer")
        return "Communication was timed in other steps, which wait after each phase."


class FlatBenchmarking(Ddp):
    """One all-reduce of all gradients."""

    name = "minimal_ddp_flat_benchmarking"
    heading = "Problem (minimal_ddp_flat_benchmarking)"

    def quoted(self) -> Sequence[Group]:
        """Those of the sentences below."""
        return [
            [self.one_call, self.copies, self.many_calls],
            [partial(self.step, "flat"), partial(self.step, "naive")],
        ]

    def answers(self) -> list[Answer]:
        """What is asked."""
        return [Answer("", [self.communication, self.both_steps])]

    def phase(self, column: str, implementation: str) -> Figure:
        """A figure of steps that wait after each phase, ms."""
        levels = {**training(self.site), "implementation": implementation, "world_size": WORLDS[0]}
        return self.site.figure(self.PHASES, column, **levels)

    def one_call(self) -> Figure:
        """The flat all-reduce without its copies."""
        whole = self.phase("communication_ms", "flat")
        return whole.of(whole.value - self.copies().value, self.copies())

    def copies(self) -> Figure:
        """Copies of gradients into one tensor and out of it."""
        return self.phase("copies_ms", "flat")

    def many_calls(self) -> Figure:
        """One all-reduce per tensor."""
        return self.phase("communication_ms", "naive")

    def communication(self) -> str:
        """One call against many."""
        return (
            f"One all-reduce takes {self.one_call().quoted} ms and copies {self.copies().quoted}, "
            f"{self.calls()} take {self.many_calls().quoted}."
        )

    def both_steps(self) -> str:
        """Steps, flat and naive."""
        flat, naive = self.step("flat"), self.step("naive")
        noise = ", the same within noise" if within_noise(flat, naive) else ""
        return f"The step takes {flat.quoted} and {naive.quoted} ms{noise}. {LINK}"


class OverlapIndividualBenchmarking(Ddp):
    """Communication during backward, tensor by tensor."""

    name = "ddp_overlap_individual_parameters_benchmarking"
    heading = "Problem (ddp_overlap_individual_parameters_benchmarking)"
    details = ("cs336.ddp_timeline", "cs336.ddp_timeline_spans")
    letters = "(a)-(b)"
    figure = "cs336.ddp_timeline"
    OVERLAP = "overlap_individual"

    def quoted(self) -> Sequence[Group]:
        """Those of the sentences below."""
        return [
            [
                *(partial(self.step, one) for one in (self.OVERLAP, "naive", "flat")),
                partial(self.step, self.OVERLAP, "exposed_ms"),
                self.of_naive,
            ],
            *(
                [partial(self.traced, column, one) for one in (self.OVERLAP, "naive")]
                for column in ("hidden_percent", "traced_communication_ms")
            ),
        ]

    def answers(self) -> list[Answer]:
        """What is asked."""
        return [Answer("a", [self.steps]), Answer("b", [self.hidden, self.lengths, self.precision])]

    def title(self) -> str:
        """What the figure shows."""
        hidden = self.traced("hidden_percent", self.OVERLAP)
        during = f"{hidden.quoted} % of communication coincides with computing{hidden.mark}"
        return f"Naive communicates after backward; overlapped, {during}"

    def of_naive(self) -> Figure:
        """Exposed communication in percent of naive's."""
        return self.step(self.OVERLAP, "exposed_ms").share(self.step("naive", "exposed_ms"))

    def traced(self, column: str, implementation: str) -> Figure:
        """A figure of the traces; marked where those of the homework's precision are not there."""
        levels = {**training(self.site), "implementation": implementation, "world_size": WORLDS[0]}
        try:
            return self.site.figure(self.TRACED, column, **levels)
        except Missing:
            return replace(self.site.figure(self.TRACED, column, **{**levels, "dtype": "tf32"}), mark="‡")

    def steps(self) -> str:
        """Steps and what of communication is exposed."""
        overlap, naive, flat = (self.step(one).quoted for one in (self.OVERLAP, "naive", "flat"))
        exposed, naive_exposed = self.step(self.OVERLAP, "exposed_ms"), self.step("naive", "exposed_ms")
        of_naive = f"{self.of_naive().quoted} % of naive's"
        if within_noise(exposed, naive_exposed):
            of_naive += ", the same within noise"
        return (
            f"A step takes {overlap} ms, {naive} naive, {flat} flat; {exposed.quoted} ms of communication are exposed, "
            f"{of_naive}. {LINK}"
        )

    def hidden(self) -> str:
        """What runs during backward."""
        overlap, naive = (self.traced("hidden_percent", one) for one in (self.OVERLAP, "naive"))
        return f"{overlap.quoted} % of communication coincides with computing, naive {naive.quoted} %{overlap.mark}."

    def lengths(self) -> str:
        """How long communication takes in both."""
        overlap, naive = (self.traced("traced_communication_ms", one) for one in (self.OVERLAP, "naive"))
        return (
            f"Communication kernels, waiting included, run {overlap.quoted} ms overlapped and {naive.quoted} ms after "
            f"backward{overlap.mark}."
        )

    def precision(self) -> str:
        """What the mark means."""
        if not self.traced("hidden_percent", self.OVERLAP).mark:
            raise Missing("mark")
        return "‡ Traced in TF32, not FP32."


class BucketedBenchmarking(Ddp):
    """Communication during backward, bucket by bucket."""

    name = "ddp_bucketed_benchmarking"
    heading = "Problem (ddp_bucketed_benchmarking)"
    details = ("cs336.ddp_overhead",)
    letters = "(a)-(b)"
    figure = "cs336.ddp_buckets"
    EQUATIONS = "overhead = s/(n_b·w) + n_b·o; best n_b = √(s/(o·w)), best bucket √(s·w·o)."

    def quoted(self) -> Sequence[Group]:
        """Those of the sentences below."""
        try:
            model = len(self.model())
        except Missing:
            model = 2
        return [
            [*(partial(self.end, "step_ms", end) for end in (0, 1)), partial(self.step, "torch_ddp")],
            [partial(self.end, "exposed_ms", end) for end in (0, 1)],
            [partial(self.modelled, place) for place in range(model)],
        ]

    def answers(self) -> list[Answer]:
        """What is asked."""
        return [
            Answer("a", [self.steps, self.exposed, self.expected, self.slower_link]),
            Answer("b", [self.EQUATIONS, self.fitted]),
        ]

    def title(self) -> str:
        """What the figure shows."""
        (least, low), (most, high) = self.ends("exposed_ms")
        if within_noise(low, high):
            return f"With buckets of any size {low.quoted} to {high.quoted} ms are exposed, the same within noise"
        return f"Buckets of {least} MB leave {low.quoted} ms exposed, of {most} MB {high.quoted}"

    def ends(self, column: str) -> tuple[tuple[str, Figure], tuple[str, Figure]]:
        """Bucket and figure where it is least and largest; of several sizes alone."""
        ran = [(one, of(self.row("overlap_bucketed", bucket=one), column)) for one in self.buckets()]
        there = [(bucket, figure) for bucket, figure in ran if figure is not None]
        if len(there) < 2:
            raise Missing("sizes of buckets")
        return min(there, key=lambda one: one[1].value), max(there, key=lambda one: one[1].value)

    def end(self, column: str, place: int) -> Figure:
        """The least figure, 0, or the largest, 1."""
        return self.ends(column)[place][1]

    def steps(self) -> str:
        """Steps by size of buckets."""
        (least, low), (most, high) = self.ends("step_ms")
        torch = f"torch's DDP takes {self.step('torch_ddp').quoted}"
        if within_noise(low, high):
            return f"The step takes {low.quoted} to {high.quoted} ms, the same within noise; {torch}."
        return (
            f"The step is least with {least} MB, {low.quoted} ms, and largest with {most} MB, {high.quoted}; {torch}."
        )

    def exposed(self) -> str:
        """Exposed communication by size of buckets."""
        (_, low), (_, high) = self.ends("exposed_ms")
        noise = ", the same within noise" if within_noise(low, high) else ""
        return f"Exposed are {low.quoted} to {high.quoted} ms{noise}. {LINK}"

    def expected(self) -> str:
        """What was expected."""
        self.ends("step_ms")
        return (
            "One call per tensor was expected to pay its fixed cost each time, one large last bucket to wait for the "
            "end of backward."
        )

    def slower_link(self) -> str:
        """Where the wait for a large bucket would be seen, which is not where that is the best."""
        (least, low), (_, high) = self.ends("step_ms")
        if least != self.buckets()[-1] or within_noise(low, high):
            raise Missing("wait")
        return "A slower link would show the latter."

    def fits(self) -> list[Row]:
        """Rows of the model."""
        rows = list(self.site.rows(self.OVERHEAD, **training(self.site), world_size=WORLDS[0]))
        return [row for row in rows if row["status"] == "ok"]

    def model(self) -> list[Figure]:
        """Bandwidth, time of a call and best bucket where the model fits, else its largest residual and of what."""
        rows = self.fits()
        residuals = [abs(known(row, "residual_ms").value) for row in rows]
        exposed = [known(row, "exposed_ms") for row in rows]
        worst, of_this = max(some(list(zip(residuals, exposed, strict=True))), key=lambda one: one[0])
        if worst > (of_this.spread or 0.0):
            return [of_this.of(worst), of_this]
        values = [known(rows[0], column).value for column in ("bandwidth", "call_us", "best_bucket_mb")]
        return [of_this.of(value, *exposed) for value in values]

    def modelled(self, place: int) -> Figure:
        """One of these."""
        return self.model()[place]

    def fitted(self) -> str:
        """Whether the model fits, and what it says then."""
        if any(row["residual_ms"].startswith(NO_FIT) for row in self.fits()):
            return "The model could not be fitted: exposed communication is within noise."
        one, other, *best = (figure.quoted for figure in self.model())
        if best:
            return f"w is {one} GB/s, o {other} μs, the best bucket {best[0]} MB."
        return f"The model does not fit (largest residual {one} of {other} ms)."


class CommunicationAccounting(Problem):
    """Pen and paper: memory and communication of a model too large for a device."""

    name = "communication_accounting"
    heading = "Problem (communication_accounting)"
    details = (
        "cs336.communication_inputs",
        "cs336.communication_memory",
        "cs336.communication_sharded",
        "cs336.communication_bound",
        "cs336.communication_remedies",
    )
    letters = "(a)-(d)"
    MEMORY, SHARDED, BOUND, REMEDIES, INPUTS = (
        f"cs336.communication_{one}" for one in ("memory", "sharded", "bound", "remedies", "inputs")
    )

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.by = "computed" if list(site.rows(self.MEMORY, status="ok")) else ""

    def answers(self) -> list[Answer]:
        """What is asked."""
        return [
            Answer("a", [self.state, self.saved]),
            Answer("b", [self.whole, self.enough]),
            Answer("c", [self.best, self.given]),
            Answer("d", [self.remedies, self.more_remedies, self.PIPELINE]),
            Answer("", [self.published]),
        ]

    PIPELINE = (
        "Pipeline stages hand on activations alone (GPipe, arXiv:1811.06965); each microbatch then has to fill the "
        "devices of one stage only."
    )

    def value(self, table: str, step: str) -> str:
        """A result: an integer whole, others to three digits; tokens by thousands."""
        value, row = self.site.figure(table, "value", step=step).value, self.site.row(table, step=step) or {}
        whole = value if value.is_integer() else float(f"{value:.3g}")
        return f"{whole:,.10g}" if row["unit"] == "tokens" else f"{whole:.10g}"

    def given_as(self, key: str) -> str:
        """An input."""
        return f"{self.site.figure(self.INPUTS, 'value', key=key).value:,.0f}"

    def state(self) -> str:
        """Weights, gradients and moments."""
        size, held = (self.value(self.MEMORY, step) for step in ("state", "devices_state"))
        return f"P = 2·L·D·F; 16·P B of state are {size} GiB, {held} H100."

    def saved(self) -> str:
        """What backward needs."""
        size, held = (self.value(self.MEMORY, step) for step in ("saved", "devices"))
        return (
            f"Saved for backward are 2·L·(D+F) B per token, A = {size} GiB at {self.given_as('tokens')} tokens; "
            f"that makes {held} H100 in all."
        )

    def whole(self) -> str:
        """What FSDP leaves whole."""
        whole = self.value(self.SHARDED, "undivided")
        end = (
            "so no N is enough" if of(self.site.row(self.SHARDED, step="n_fsdp"), "value") is None else "on each device"
        )
        return f"A device holds (16·P + A/2)/N + A/2: A/2 = {whole} GiB stays whole, {end}."

    def enough(self) -> str:
        """Where FSDP is enough."""
        tokens, state = (self.value(self.SHARDED, step) for step in ("most_tokens", "n_fsdp_state"))
        return f"Below {tokens} tokens some N is enough; N = {state} holds the state alone."

    def best(self) -> str:
        """The least batch of any mesh."""
        tokens, batch = (self.value(self.BOUND, step) for step in ("best", "best_batch"))
        return f"With α = C/W a device needs 4α²/(M_X·M_Y·F) = {tokens} tokens, {batch} in all, if X and Y are best."

    def given(self) -> str:
        """The least batch of the mesh that is given."""
        mesh = [self.given_as(key) for key in ("fsdp_devices", "tensor_devices")]
        tokens, batch = (self.value(self.BOUND, step) for step in ("summed", "summed_batch"))
        return f"With X = {mesh[0]}, Y = {mesh[1]} they are {tokens} and {batch}."

    def remedies(self) -> str:
        """What makes the batch smaller."""
        overlapped, byte = (self.value(self.REMEDIES, step) for step in ("overlapped", "one_byte"))
        return (
            f"FSDP and TP communicating at once need {overlapped} tokens per device, weights gathered in one byte "
            f"{byte} (ZeRO++, arXiv:2306.10209)."
        )

    def more_remedies(self) -> str:
        """What makes it smaller, too."""
        both, bandwidth = (self.value(self.REMEDIES, step) for step in ("both", "bandwidth"))
        return f"Both together need {both}; twice the bandwidth alone needs {bandwidth}."

    def published(self) -> str:
        """What a write-up has."""
        held, tokens = (
            published("communication_accounting", "step_count", "brandon-snider", step=step)
            for step in ("n_fsdp_divided", "best")
        )
        return f"Published: a write-up has {held} devices in (b), without what stays whole, {tokens} tokens in (c)."


class OptimizerStateSharding(Checked):
    """Optimizer state divided among ranks."""

    name = "optimizer_state_sharding"
    heading = "Problem (optimizer_state_sharding)"
    IMPLEMENTATION = "sharded (ours)"
    CHECK = "cs336.sharding_times"

    def right(self, row: Row) -> bool:
        """A difference beyond the limit fails the measurement."""
        return row["status"] == "ok"

    def apart(self) -> str:
        """The largest difference on most ranks."""
        most, row = self.last("off_by")
        if float(row["off_by"]) == 0:
            return f"On {most} ranks weights after the steps equal those of the unsharded optimizer."
        off = Figure(100 * float(row["off_by"])).quoted
        return f"On {most} ranks weights after the steps are at most {off} % off those of the unsharded optimizer."


class ShardingAccounting(Problem):
    """Memory, time and messages of sharded optimizer state."""

    name = "optimizer_state_sharding_accounting"
    heading = "Problem (optimizer_state_sharding_accounting)"
    details = (
        "cs336.sharding_memory",
        "cs336.sharding_kinds",
        "cs336.sharding_saved",
        "cs336.sharding_times",
        "cs336.sharding_zero",
    )
    letters = "(a)-(c)"
    figure = "cs336.sharding_memory_and_time"
    MEMORY, KINDS, TIMES, ZERO = (f"cs336.sharding_{one}" for one in ("memory", "kinds", "times", "zero"))
    OPTIMIZERS = {"unsharded": "AdamW, unsharded", "sharded": "sharded (ours)"}  # noqa: RUF012
    MOMENTS = {  # noqa: RUF012
        "after model init": ("init_gib", "after model init"),
        "before optimizer step": ("passes_gib", "peak of forward, backward, averaging"),
        "after optimizer step": ("step_gib", "peak of the optimizer step"),
    }
    PARTS = ("parameters_gib", "gradients_gib", "optimizer_state_gib")
    PUBLISHED = "Published, MiB, TF32: unsharded 7805, 34105, 31565; sharded 7805, 26313, 23724."
    DIFFERENCES = (
        "Stage 1 cuts each state evenly, ours gives whole tensors to ranks. It sends by reduce-scatter and all-gather, "
        "ours by all-reduce and broadcast."
    )

    def tables(self) -> list[Table]:
        """The problem's table."""
        if not ran(self.site, self.MEMORY):
            return []
        return [
            Table(
                f"(a) Peak of allocated memory and its parts, {self.unit()}.",
                f"{setup(self.site, self.MEMORY, WORLDS[0])}, one run; peak of each phase and its parts.",
                ["optimizer", "moment", "peak", "parameters", "gradients", "optimizer state", "other"],
                [
                    [label(optimizer), label(moment), self.cell(self.peak, optimizer, moment)]
                    + [self.cell(self.part, optimizer, moment, part) for part in self.PARTS]
                    + [self.cell(self.other, optimizer, moment)]
                    for optimizer in self.OPTIMIZERS
                    for moment in self.MOMENTS
                ],
                [self.steps(), self.PUBLISHED if self.site.gpu else ""],
            )
        ]

    def answers(self) -> list[Answer]:
        """What is asked."""
        return [
            Answer("a", [self.states, self.peaks, self.temporaries]),
            Answer("b", [self.times]),
            Answer("c", [self.messages, self.DIFFERENCES]),
        ]

    def title(self) -> str:
        """What the figure shows."""
        peaks = [max((self.peak(one, moment) for moment in self.MOMENTS), key=lambda peak: peak.value)
                 for one in self.OPTIMIZERS]  # fmt: skip
        less = peaks[0].of(peaks[0].value - peaks[1].value, peaks[1])
        plain, sharded = self.time("step_ms", "unsharded"), self.time("step_ms", "sharded")
        change = sharded.of(100 * (sharded.value / plain.value - 1), plain)
        by = "within noise" if within_noise(plain, sharded) else f"by {change.quoted} %"
        on = f"{WORLDS[0]} {devices(self.site)}"
        return f"Sharding on {on} takes {less.quoted} {self.unit()} off the peak and changes the step {by}"

    def unit(self) -> str:
        """Of memory."""
        return "GB" if self.site.gpu else "MB"

    def figure_of(self, table: str, column: str, optimizer: str, world: str = WORLDS[0], **levels: str) -> Figure:
        """A figure of an optimizer; memory in the table's unit."""
        known_as = {"implementation": self.OPTIMIZERS[optimizer], "world_size": world}
        figure = self.site.figure(table, column, **training(self.site), **known_as, **levels)
        return self.sized(figure) if column.endswith("_gib") else figure

    def sized(self, gib: Figure) -> Figure:
        """Memory in the table's unit."""
        return replace(gib, value=gib.value * GIB_AS_GB * (1 if self.site.gpu else 1000))

    def peak(self, optimizer: str, moment: str) -> Figure:
        """Peak up to a moment."""
        return self.figure_of(self.MEMORY, self.MOMENTS[moment][0], optimizer)

    def part(self, optimizer: str, moment: str, part: str) -> Figure:
        """A part of it."""
        return self.figure_of(self.KINDS, part, optimizer, moment=self.MOMENTS[moment][1])

    def other(self, optimizer: str, moment: str) -> Figure:
        """The rest of it."""
        parts = [self.part(optimizer, moment, part) for part in self.PARTS]
        return Figure(self.peak(optimizer, moment).value - sum(part.value for part in parts))

    def cell(self, figure: Callable[..., Figure], *levels: str) -> Cell:
        """A figure as a cell."""
        try:
            return Cell(str(figure(*levels)))
        except Missing:
            return NOT_MEASURED

    def time(self, column: str, optimizer: str, world: str = WORLDS[0]) -> Figure:
        """Time of a step or a part of it, ms."""
        return self.figure_of(self.TIMES, column, optimizer, world)

    def steps(self) -> str:
        """Steps with both optimizers, by devices."""
        parts: list[str] = []
        for world in WORLDS:
            try:
                plain, sharded = (self.time("step_ms", one, world) for one in self.OPTIMIZERS)
            except Missing:
                continue
            said = f"{plain!s}, {sharded!s}" if parts else f"unsharded {plain!s}, sharded {sharded!s} ms"
            parts.append(f"{said} on {world}")
        return f"Step: {'; '.join(parts)}." if parts else ""

    def states(self) -> str:
        """Optimizer state."""
        moment = "before optimizer step"
        plain, sharded = (self.part(one, moment, "optimizer_state_gib").quoted for one in self.OPTIMIZERS)
        return f"Optimizer state is {plain} {self.unit()}, sharded {sharded}."

    def peaks(self) -> str:
        """Peaks before the step and of it."""
        before, step = (
            [self.peak(one, moment).quoted for one in self.OPTIMIZERS]
            for moment in ("before optimizer step", "after optimizer step")
        )
        said = f"The peak before the step is {before[0]} and {before[1]} {self.unit()}"
        return f"{said}, of the step {step[0]} and {step[1]}."

    def temporaries(self) -> str:
        """What the unsharded step holds besides."""
        moment = "after optimizer step"
        if self.other("unsharded", moment).value < self.part("unsharded", moment, "parameters_gib").value:
            raise Missing("temporaries")
        return "The unsharded step also holds temporaries of all parameters; the published one does not."

    def times(self) -> str:
        """A step, its update and its exchange."""
        plain, sharded = (self.time("step_ms", one) for one in ("unsharded", "sharded"))
        noise = ", the same within noise" if within_noise(plain, sharded) else ""
        own, whole = (self.time("optimizer_ms", one) for one in ("sharded", "unsharded"))
        exchange = self.time("exchange_ms", "sharded").quoted
        return (
            f"A step takes {sharded.quoted} ms sharded, {plain.quoted} unsharded{noise}. Its optimizer takes "
            f"{own.quoted} and {whole.quoted} ms; the exchange alone takes {exchange}."
        )

    def messages(self) -> str:
        """What is sent in a step."""
        levels = {"size": training(self.site)["size"], "world_size": WORLDS[0]}
        sent, calls = (
            [self.site.figure(self.ZERO, column, scheme=scheme, **levels)
             for scheme in ("ZeRO stage 1", "ours: whole parameters")]
            for column in ("sent_gib", "messages")
        )  # fmt: skip
        sizes = [self.sized(figure).quoted for figure in sent]
        return (
            f"Stage 1 sends {sizes[0]} {self.unit()} per step in {calls[0].value:.0f} messages, "
            f"ours {sizes[1]} {self.unit()} in {calls[1].value:.0f}."
        )


PROBLEMS = (
    DistributedCommunication,
    NaiveDdp,
    NaiveDdpBenchmarking,
    FlatBenchmarking,
    OverlapIndividual,
    OverlapIndividualBenchmarking,
    OverlapBucketed,
    BucketedBenchmarking,
    CommunicationAccounting,
    OptimizerStateSharding,
    ShardingAccounting,
)
