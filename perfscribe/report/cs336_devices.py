"""CS336 assignment 2 (systems), spring 2025, version 1.0.4: the problems that several devices answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfscribe.report.cells import NO_SUCH_THING, WORDS, Cell, as_cell, shown
from perfscribe.report.problem import Answer, Finding, Lettered, OnPaper, Part, Problem, Status, Table, Title, Why
from perfscribe.report.site import NOTHING, Row, Site, ends, entry, fault, figure, ok
from perfscribe.show import references
from perfscribe.show.rounding import NO_FIGURE, Figure
from perfscribe.subjects import YOURS

WORLDS = ("2", "4")
LINK = "[Table](#problem-naive_ddp_benchmarking)"
NO_FIT = "no fit: "  # begins a cell of ddp_overhead where the model is not fitted; the reason follows


def training(site: Site, table: str) -> dict[str, str]:
    """Levels of the model that DDP and sharding train; sharding's batch is that of published memory."""
    batch = "16" if "sharding" in table else "32"
    if site.gpu:
        return {"size": "xl", "seq_len": "128", "batch": batch, "dtype": "fp32"}
    return {"size": "nano", "dtype": "fp32"}


def ran(site: Site, table: str) -> list[Row]:
    """Rows of that model that are ok."""
    return list(filter(ok, site.rows(table, **training(site, table))))


def setup(row: Row, on: str = "") -> str:
    """Model, precision, context, devices, global batch and backend of a table's rows."""
    model = f"{spelt(row['size'])}, {row['dtype'].upper()}, context {row['seq_len']}"
    return f"{model}{on and f', {on}'}, global batch {row['batch']}, {spelt(row['backend'])}"


def handed_in(site: Site, table: str, ours: str) -> str:
    """The implementation whose rows are handed in: the user's own, where there is one, has that in brackets."""
    return site.handed_in(table, ours, f"{ours.removesuffix(' (ours)')} ({YOURS})")


def spelt(name: str) -> str:
    """A level as text has it."""
    return {"xl": "XL", "nccl": "NCCL", "gloo": "Gloo"}.get(name, name)


def noise(one: Figure, other: Figure) -> str:
    """What is said behind two figures that may be the same."""
    return ", the same within noise" if one.within_noise(other) else ""


def counted(*sentences: Sequence[Figure]) -> Status:
    """Status of a problem without a table: the figures of its sentences, filled of all; nothing where none is."""
    filled = [one for figures in sentences if all(figures) for one in figures]
    return Status(f"{len(filled)} of {sum(map(len, sentences))}" if filled else "")


class DistributedCommunicationSingleNode(Problem):
    """All-reduce by backend, size and processes."""

    details = ("cs336.all_reduce",)
    figure = "cs336.all_reduce_by_size"

    def _prepare(self, site: Site) -> None:
        # Answers speak of the last that was measured.
        self.backends = ("gloo", "nccl") if site.gpu else ("gloo",)
        sizes = ("1 MB", "10 MB", "100 MB", "1 GB"), ("1 MB", "3 MB", "10 MB")
        table, on = self.table, {"backend": "gloo", "device": "cpu"}
        self.worlds = site.swept(table, "world_size", ("2", "4", "6"), WORLDS, **on)
        self.messages = site.swept(table, "message", *sizes, **on)

    def parts(self) -> Iterator[Part]:
        """By backend, processes and size; the largest size, what it adds, what further devices add."""
        sizes = [message.replace(" ", "") for message in self.messages]
        before, last = self.messages[-2:][0], self.messages[-1]
        yield Table(
            "All-reduce of FP32 arrays, ms per call.",
            f"1MB: 2²⁰ bytes, 1GB: 2³⁰; median ± half IQR of {self.calls()}, slowest rank, host clock"
            + (" with synchronise; Gloo on CPUs, NCCL on GPUs." if self.site.gpu else "; Gloo on CPUs."),
            ["Backend", "world_size", *sizes, f"002 {sizes[-1]} (ms)"],
            [
                [
                    *(backend, world),
                    *(as_cell(self.row(backend, world, one), "host_ms") for one in self.messages),
                    self.of_002(backend, world, last),
                ]
                for backend in self.backends
                for world in self.worlds
            ],
        )
        measured = {one: [world for world in self.worlds if self.time(one, last, world)] for one in self.backends}
        name = next((one for one in reversed(self.backends) if measured[one]), self.backends[-1])
        is_nccl, worlds = name == "nccl", measured[name]
        few, most = self.worlds[0], worlds[-1] if worlds else ""
        time, on = self.time(name, last, most), self.site.ranks(most) if is_nccl else f"{most} processes"
        gloo, grows = self.time("gloo", last, most), time.over(self.time(name, before, most))
        takes = f"For {sizes[-1]} {spelt(name)} takes {{}} on {on}"
        yield Answer(
            f"On {on} {spelt(name)} takes {time} ms for {sizes[-1]}{f', Gloo {gloo}' if is_nccl else ''}.",
            f"From {sizes[-2]} to {sizes[-1]} {spelt(name)}'s time grows {grows} times." if before != last else "",
            self.more_devices(takes, self.time(name, last, few), time, few) if few != most else "",
        )
        # Half the interquartile range is at most a quarter of the time.
        calls = [(one, self.time("gloo", one, most)) for one in self.messages]
        first = next((one for one, of in calls if (of.spread or 0.0) <= of.value / 4), last)
        ratios = [self.time("gloo", one, most).over(self.time("nccl", one, most)) for one in (last, first)]
        grown = gloo.over(self.time("gloo", first, most))
        said = f"Gloo takes {grown} times as long for {sizes[-1]} as for {first.replace(' ', '')}"
        if is_nccl:
            said = f"NCCL is {ratios[0]} times as fast as Gloo at {sizes[-1]}, {ratios[1]} at {first.replace(' ', '')}"
        if first != last:
            yield Title(f"{said} ({most} processes)")
        row = self.row(name, most, last)
        share = figure(row, "busbw_gb_per_s").share(figure(row, "link_gb_per_s"))
        if is_nccl:
            rate = f"{gloo.over(time)} times as fast as Gloo, with {share} % of a copy's bandwidth (CUDA events)"
            yield Finding(8, "several devices", f"{most} GPUs reduce 1GB by NCCL in {time} ms, {rate}.")

    def row(self, backend: str, world: str, message: str) -> Row | None:
        """The measurement of a cell. Gloo's arrays are on CPUs, also where there are GPUs."""
        device = "cuda" if backend == "nccl" else "cpu"
        return self.site.row(self.table, backend=backend, device=device, world_size=world, message=message)

    def time(self, backend: str, message: str, world: str) -> Figure:
        """Time of a call, ms."""
        return figure(self.row(backend, world, message), "host_ms")

    def calls(self) -> str:
        """How many calls, and where there are fewer."""
        counts: dict[str, set[int]] = {}
        for backend in self.backends:
            for message in self.messages:
                rows = [self.row(backend, world, message) for world in self.worlds]
                at = f"{spelt(backend)} at {message.replace(' ', '')}"
                counts[at] = {int(row["time_ms_n"]) for row in rows if ok(row)}
        usual = Counter(n for several in counts.values() for n in several).most_common(1)
        most = usual[0][0] if usual else 0
        others = {at: several for at, several in counts.items() if several and several != {most}}
        fewer = "; ".join(f"{at}: of {' to '.join(map(str, sorted(several)))}" for at, several in others.items())
        return f"{most} ({fewer})" if fewer else f"{most}"

    def of_002(self, backend: str, world: str, message: str) -> str:
        """002's slowest rank, ms."""
        number, unit = message.split()
        size = int(number) * (1024 if unit == "GB" else 1)
        levels: dict[str, references.Level] = {"backend": backend, "world_size": int(world), "size_mb": size}
        ranks = references.find("all_reduce", "time_ms", references.OF_002, **levels)
        times = [one.value for one in ranks if one.value is not None]
        return str(Figure(max(times))) if times else NOTHING

    def more_devices(self, said: str, one: Figure, other: Figure, few: str) -> str:
        """Most devices against the fewest, at the largest size. said: who takes {} for it on most."""
        if one.within_noise(other):
            return f"{said.format('as long')} as on {few} within noise."
        change = other.of(100 * (other.value / one.value - 1), one)
        by = f"{change.of(abs(change.value))} % {'longer' if change.value > 0 else 'less'}"
        return f"{said.format(by)} than on {few}."


class Checked(Problem):
    """A problem of code alone: whether weights after training agree with those of one process."""

    IMPLEMENTATION, CHECK, ERROR = "", "cs336.ddp_check", "error"

    def parts(self) -> Iterator[Part]:
        """Whether all checks are right; the largest difference on most ranks."""
        levels = training(self.site, self.CHECK)
        levels["implementation"] = handed_in(self.site, self.CHECK, self.IMPLEMENTATION)
        rows = [row for row in self.site.rows(self.CHECK, **levels) if row["status"] in ("ok", *WORDS)]
        if rows:
            right = (ok(row) and float(row.get("error", 0)) <= float(row.get("allowed", 0)) for row in rows)
            yield Status("checked" if all(right) else "check failed")
        whose = f"({YOURS})" in str(levels["implementation"])
        wrong = next(filter(None, map(fault, rows)), "")
        if rows := list(filter(ok, rows)):
            row = max(rows, key=lambda row: (int(row["world_size"]), float(row[self.ERROR])))
            yield Answer(self.apart(row), "The code is yours." if whose else "")
        elif wrong:
            yield Answer(f"{'Your' if whose else 'Our'} code fails its check: {wrong}.")

    def apart(self, row: Row) -> str:
        """The largest difference on most ranks."""
        error, allowed = (100 * float(row[name]) for name in ("error", "allowed"))
        return (
            f"After training a small model with SGD, weights on {row['world_size']} ranks differ from one process's by "
            f"{Figure(error)} % of their change (allowed {allowed:g} %)."
        )


class NaiveDdp(Checked):
    """One all-reduce per tensor after backward."""

    details = ("cs336.ddp_check",)
    IMPLEMENTATION = "naive"


class DdpOverlapIndividualParameters(Checked):
    """One all-reduce per tensor during backward."""

    IMPLEMENTATION = "overlap_individual"


class DdpOverlapBucketed(Checked):
    """One all-reduce per bucket during backward."""

    IMPLEMENTATION = "overlap_bucketed"


class OptimizerStateSharding(Checked):
    """Optimizer state divided among ranks. A difference beyond the limit fails the measurement."""

    IMPLEMENTATION, CHECK, ERROR = "sharded (ours)", "cs336.sharding_times", "off_by"

    def apart(self, row: Row) -> str:
        """The largest difference on most ranks."""
        off = Figure(100 * float(row["off_by"]))
        are = f"are at most {off} % off" if off.value else "equal"
        return f"After the steps, weights on {row['world_size']} ranks {are} those of the unsharded optimizer."


class Ddp(Problem):
    """What the benchmarks of DDP share: one table, which the first of them prints and the others quote."""

    STEPS, PHASES, TRACED, OVERHEAD = (f"cs336.ddp_{one}" for one in ("benchmark", "phases", "timeline", "overhead"))
    CHECK = STEPS

    def _prepare(self, site: Site) -> None:
        buckets = ("1", "10", "100", "1000"), ("0.1", "1", "10")
        self.worlds = site.swept(self.STEPS, "world_size", WORLDS, WORLDS)
        self.buckets = site.swept(self.STEPS, "bucket_mb", *buckets, implementation="overlap_bucketed")
        # Implementation and bucket of each row of the table.
        kinds = [(one, "none") for one in ("naive", "flat", "overlap_individual")]
        self.kinds = [*kinds, *(("overlap_bucketed", bucket) for bucket in self.buckets), ("torch_ddp", "none")]
        # The naive implementation on as many devices as it ran on, and its all-reduces in a step.
        self.naive = [row for world in self.worlds if ok(row := self.row("naive", world))]
        self.calls = entry(next(iter(self.naive), None), "all_reduces")

    def row(self, implementation: str, world: str = WORLDS[0], table: str = STEPS, **levels: str) -> Row | None:
        """The row of an implementation, in the table in which DDP is or in another."""
        levels |= {"implementation": handed_in(self.site, table, implementation), "world_size": world}
        return self.site.row(table, **training(self.site, table), **levels)

    def is_yours(self, implementation: str) -> bool:
        """Whether its rows are of the user's own code."""
        return handed_in(self.site, self.STEPS, implementation) != implementation

    def named(self, implementation: str) -> str:
        """Its name in the table; where the user's own code was measured, with whose it is."""
        name = handed_in(self.site, self.STEPS, implementation)
        of_library = name.startswith("torch") or "(" in name
        return name if of_library or not self.site.has_subject else f"{name} (ours)"

    def step(self, implementation: str, column: str = "step_ms", bucket: str = "none") -> Figure:
        """A figure of the table in which DDP on two devices is, ms."""
        return figure(self.row(implementation, bucket_mb=bucket), column)

    def of_two(self, table: str, column: str, implementation: str) -> Figure:
        """A figure of another table, on two devices."""
        return figure(self.row(implementation, table=table), column)


class NaiveDdpBenchmarking(Ddp):
    """Steps and communication of all implementations."""

    details = ("cs336.ddp_benchmark", "cs336.ddp_phases")

    def parts(self) -> Iterator[Part]:
        """All implementations, on two devices and on four; what of naive's step is communication."""
        rows, on = ran(self.site, self.STEPS), self.site.ranks_are
        if not rows:
            return
        count = self.site.of_so_many(self.STEPS, "step_ms_n", **training(self.site, self.STEPS))
        clock = "host clock with synchronise" if self.site.gpu else "host clock"
        is_any_yours = any(self.is_yours(one) for one, _ in self.kinds)
        apart = "; yours are of other launches than ours ([in turns](details/subjects.md))" * is_any_yours
        yield Table(
            "DDP: step, communication and exposed communication, ms.",
            f"{setup(rows[0])}, AdamW; median ± half IQR{count} steps in {rows[0]['turns']} turns, {clock}; comm: in "
            "separate steps that wait after each phase; exposed: step minus the same step without collectives, in "
            f"which flat's copies stay and torch_ddp's do not{apart}.",
            [
                *("implementation", "bucket_mb"),
                *(f"{one} ({world} {on})" for world in self.worlds for one in ("step_ms", "comm_ms", "exposed_ms")),
            ],
            [
                [self.named(one), bucket.replace("none", NOTHING)]
                + [cell for world in self.worlds for cell in self.cells(one, world, bucket)]
                for one, bucket in self.kinds
            ],
            "Published: 2 H100, TF32: naive 827.3 ms (42.6 communicating); with batch 16 naive 531.7 (42.8), flat "
            "523.0, overlap 509.3, buckets 511.0, 509.0, 516.4, 512.9." * self.site.gpu,
        )
        found = [(self.step(one, "exposed_ms", bucket), one, bucket) for one, bucket in self.kinds]
        there = [row for row in found if row[0]] or found
        least, one, bucket = min(there, key=lambda row: row[0].value)
        name = self.named(one) if bucket == "none" else f"buckets of {bucket} MB"
        then = f"{name} {'none beyond noise' if least.value <= (least.spread or 0.0) else least}"
        naive = self.step("naive", "exposed_ms")
        if naive.value > (naive.spread or 0.0):
            exposes = f"naive DDP exposes {naive} ms of communication per step"
            yield Finding(6, "several devices", f"On {self.site.ranks(2)} {exposes}, {then}{noise(naive, least)}.")
        yield from self.communication()

    def communication(self) -> Iterator[Part]:
        """Set-up and shares of the naive implementation."""
        naive = self.naive
        found = [[figure(row, one) for one in ("step_ms", "spent_ms", "spent_percent")] for row in naive]
        if not naive or not all(map(all, found)):
            return
        row, worlds = naive[0], [self.site.ranks(naive[0]["world_size"]), *(each["world_size"] for each in naive[1:])]
        steps = ", ".join(f"{step}{' ms' * (not n)} on {worlds[n]}" for n, (step, *_) in enumerate(found))
        spent = " and ".join(
            f"{spent} ms ({percent} % of such a step)" if not n else f"{spent} ({percent} %)"
            for n, (_, spent, percent) in enumerate(found)
        )
        yield Answer(
            f"{setup(row)}, AdamW.",
            f"A step takes {steps}. In steps that wait after each phase the {self.calls} all-reduces take {spent}.",
        )

    def cells(self, implementation: str, world: str, bucket: str) -> list[Cell]:
        """Step, communication and what of it is exposed. Communication is timed only where it follows backward."""
        row = self.row(implementation, world, bucket_mb=bucket)
        after = as_cell(row, "spent_ms") if implementation in ("naive", "flat") else NO_SUCH_THING
        return [as_cell(row, "step_ms"), after, as_cell(row, "exposed_ms")]


class MinimalDdpFlatBenchmarking(Ddp):
    """One all-reduce of all gradients."""

    def parts(self) -> Iterator[Part]:
        """One call against many, and both steps."""
        whole, many = (self.of_two(self.PHASES, "communication_ms", one) for one in ("flat", "naive"))
        copies = self.of_two(self.PHASES, "copies_ms", "flat")
        one_call, calls = whole.of(whole.value - copies.value, copies), self.calls
        flat, naive, on = self.step("flat"), self.step("naive"), self.site.ranks(WORLDS[0])
        yield counted([one_call, copies, many], [flat, naive])
        yield Answer(
            f"On {on} one all-reduce takes {one_call} ms plus {copies} for copies; {calls} take {many}." * bool(calls),
            f"The flat step takes {flat} ms, the naive {naive}{noise(flat, naive)}. {LINK}",
        )


class DdpOverlapIndividualParametersBenchmarking(Ddp):
    """Communication during backward, tensor by tensor."""

    details = ("cs336.ddp_timeline",)
    letters = "(a)-(b)"
    figure, figure_of_yours = "cs336.ddp_timeline", "cs336.subject_ddp_timeline"
    OVERLAP = "overlap_individual"
    TIMES = ("traced_both_ms", "hidden_percent", "traced_communication_ms", "traced_compute_ms")
    WAITING = "The times of NCCL's kernels include waiting for the other rank."

    def parts(self) -> Iterator[Part]:
        """(a) steps; (b) traces."""
        overlap, naive, flat = (self.step(one) for one in (self.OVERLAP, "naive", "flat"))
        exposed, naive_exposed = (self.step(one, "exposed_ms") for one in (self.OVERLAP, "naive"))
        share = exposed.share(naive_exposed)
        hidden, share_hidden, sent, computing = (self.of_two(self.TRACED, one, self.OVERLAP) for one in self.TIMES)
        yours = self.is_yours(self.OVERLAP)  # timed in another launch than our naive DDP
        beside = "cs336.subject_ddp_spans" if yours else self.TRACED  # as the figure draws it
        naive_hidden, _, naive_sent, naive_computing = (self.of_two(beside, one, "naive") for one in self.TIMES)
        traced = [hidden, sent, computing, naive_hidden, naive_sent, naive_computing]
        yield counted([overlap, naive, flat, exposed, share], traced)
        on = f"On {self.site.ranks(WORLDS[0])}"
        of_naive = f", {share} % of naive DDP's{noise(exposed, naive_exposed)}"
        of_naive *= not yours and naive_exposed.value > (naive_exposed.spread or 0.0)
        yield Lettered(
            "a",
            f"{on} a step takes {overlap} ms (naive {naive}, flat {flat}); {exposed} ms of communication are "
            f"exposed{of_naive}. {LINK}",
        )
        yield Lettered(
            "b",
            f"In a traced step {hidden} of {sent} ms of communication run during computation, in naive DDP "
            f"{naive_hidden} of {naive_sent}.",
            f"Computation takes {computing} ms, in naive DDP {naive_computing}.",
            self.WAITING * self.site.gpu,
        )
        if yours:
            self.figure = self.figure_of_yours
        during = f"{hidden} of {sent} ms of communication ({share_hidden} %) run during computation"
        yield Title(f"{on} naive DDP communicates after backward; overlapped, {during}")


class DdpBucketedBenchmarking(Ddp):
    """Communication during backward, bucket by bucket."""

    details = ("cs336.ddp_overhead",)
    letters = "(a)"
    figure = "cs336.ddp_buckets"
    EQUATIONS = "overhead = s/(n_b·w) + n_b·o; best n_b = √(s/(o·w)), best bucket √(s·w·o)."

    def parts(self) -> Iterator[Part]:
        """(a) steps and what is exposed by size of buckets; (b) the model."""
        (least, low), (_, high) = self.ends("step_ms")
        (few, little), (_, much) = self.ends("exposed_ms")
        torch = self.step("torch_ddp")
        yours = self.is_yours("overlap_bucketed")
        fitted, model = ("", []) if yours else self.model()  # fitted to ours
        yield counted([low, high, torch], [little, much], model)
        same = low.within_noise(high)
        on = f"On {self.site.ranks(WORLDS[0])}"
        steps = f"{on} the step is fastest with {least} MB buckets, {low} ms; others take up to {high}"
        if same:
            steps = f"{on} the step takes {low} to {high} ms, the same within noise"
        expected = (
            "We expected one call per tensor to pay its fixed cost each time, one large bucket to wait for the end of "
            "backward."
        )
        yield Lettered(
            "a",
            f"{steps}; torch's DDP takes {torch}.",
            f"Buckets expose {little} to {much} ms{noise(little, much)}. {LINK}",
            Why(f"{expected} {self.shown()}", bool(low)),
        )
        yield OnPaper("b", self.EQUATIONS, fitted)
        if yours:  # the figure has ours
            return
        if little.within_noise(much):
            yield Title(f"{on} buckets of any size leave {little} to {much} ms exposed, the same within noise")
        else:
            yield Title(f"{on} buckets of {few} MB leave {little} ms exposed, others up to {much}")

    def shown(self) -> str:
        """Which of both expectations what is exposed bears out, by the size that exposes least."""
        by_calls: dict[str, Figure] = {}  # buckets of one tensor each are the same, whatever their limit
        for bucket in self.buckets:
            row = self.row("overlap_bucketed", bucket_mb=bucket)
            if exposed := figure(row, "exposed_ms"):
                by_calls.setdefault(entry(row, "all_reduces"), exposed)
        found = list(by_calls.values())
        if len(found) < 2:
            return ""
        least = min(found, key=lambda one: one.value)
        cost, wait = (one is not least and not one.within_noise(least) for one in (found[0], found[-1]))
        if cost and wait:
            return "Both show."
        return f"The {'first' if cost else 'second'} alone shows." if cost or wait else "Neither shows."

    def ends(self, column: str) -> list[tuple[str, Figure]]:
        """Bucket and figure where it is least and largest; of several sizes alone."""
        found = [(one, self.step("overlap_bucketed", column, one)) for one in self.buckets]
        there = sorted((one for one in found if one[1]), key=lambda one: one[1].value)
        return [there[0], there[-1]] if len(there) > 1 else [("", NO_FIGURE)] * 2

    def model(self) -> tuple[str, list[Figure]]:
        """What the model says where it fits, else how far it is off; and the figures of that."""
        levels = {**training(self.site, self.OVERHEAD), "world_size": WORLDS[0]}
        rows = list(filter(ok, self.site.rows(self.OVERHEAD, **levels)))
        exposed = [figure(row, "exposed_ms") for row in rows]
        if not rows or not all(exposed):
            return "", [NO_FIGURE] * 2
        residuals = [abs(figure(row, "residual_ms").value) for row in rows]
        worst, of_this = max(zip(residuals, exposed, strict=True), key=lambda one: one[0])
        if rows[0]["residual_ms"].startswith(NO_FIT):
            return f"The model could not be fitted: {rows[0]['residual_ms'].removeprefix(NO_FIT)}.", [NO_FIGURE] * 2
        if rows[0]["bandwidth"].startswith(NO_FIT):
            off = of_this.of(worst)
            return f"The model does not fit (largest residual {off} of {of_this} ms).", [off, of_this]
        columns = ("bandwidth", "call_us", "best_bucket_mb")
        model = [of_this.of(figure(rows[0], column).value, *exposed) for column in columns]
        return (
            f"On {self.site.ranks(WORLDS[0])} w is {model[0]} GB/s, o {model[1]} μs, the best bucket {model[2]} MB.",
            model,
        )


class CommunicationAccounting(Problem):
    """Pen and paper: memory and communication of a model too large for a device."""

    details = ("cs336.communication_inputs", "cs336.communication_steps")
    letters = "(a)-(d)"
    INPUTS, STEPS = details

    def parts(self) -> Iterator[Part]:
        """Letter by letter."""
        if any(self.site.rows(self.STEPS, status="ok")):
            yield Status("computed")
        state, state_on, saved, saved_on = self.steps("state", "devices_state", "saved", "devices")
        found = (self.site.value(self.INPUTS, "value", key=key) for key in ("tokens", "fsdp_devices", "tensor_devices"))
        tokens, across, within = (f"{one.value:,.0f}" if one else f"{one}" for one in found)
        memory = replace(self.site.value(self.INPUTS, "value", key="device_memory_gb"), exact=True)
        yield Lettered(
            "a",
            f"P = 2·L·D·F parameters have 16·P B of state: {state} GiB, {state_on} H100 of {memory} GiB.",
            f"Backward needs A = 2·L·(D+F)·T B of activations, {saved} GiB at T = {tokens} tokens: {saved_on} H100 in "
            "all.",
        )
        whole, most, alone = self.steps("undivided", "most_tokens", "n_fsdp_state")
        some = self.site.value(self.STEPS, "value", step="n_fsdp")
        size = replace(self.site.value(self.INPUTS, "value", key="fsdp_memory_gb"), exact=True)
        yield Lettered(
            "b",
            f"A device's {size} GiB must hold (16·P + A/2)/N + A/2: A/2 = {whole} GiB is not sharded, "
            f"{'so each device holds it' if some else 'so no N is enough'}.",
            f"Below {most} tokens some N is enough; N = {alone} holds the state alone.",
        )
        best, batch, summed, summed_batch = self.steps("best", "best_batch", "summed", "summed_batch")
        yield Lettered(
            "c",
            f"With α = C/W and the best X and Y a device needs 4α²/(M_X·M_Y·F) = {best} tokens, {batch} in all.",
            f"With X = {across}, Y = {within} it needs {summed}, {summed_batch} in all.",
        )
        overlapped, byte, both, twice = self.steps("overlapped", "one_byte", "both", "bandwidth")
        yield Lettered(
            "d",
            f"A device needs {overlapped} tokens if FSDP and TP communicate at once, {byte} if weights are gathered in "
            "one byte (ZeRO++, arXiv:2306.10209).",
            f"With both it needs {both}, with twice the bandwidth alone {twice}.",
            "Pipeline stages exchange only activations (GPipe, arXiv:1811.06965); each microbatch then has to fill the "
            "devices of one stage only.",
        )
        yield Answer("Published: a write-up has 46 devices in (b), without the unsharded part, and 246 tokens in (c).")

    def steps(self, *steps: str) -> list[str]:
        """Results: an integer whole, others to three digits; tokens by thousands."""
        found = []
        for row in (self.site.row(self.STEPS, step=step) for step in steps):
            value = figure(row, "value")
            whole = value.value if value.value.is_integer() else float(f"{value.value:.3g}")
            by_thousands = "," if entry(row, "unit") == "tokens" else ""
            found.append(f"{whole:{by_thousands}.10g}" if value else f"{value}")
        return found


class OptimizerStateShardingAccounting(Problem):
    """Memory, time and messages of sharded optimizer state."""

    details = (
        "cs336.sharding_memory",
        "cs336.sharding_kinds",
        "cs336.sharding_saved",
        "cs336.sharding_times",
        "cs336.sharding_zero",
    )
    letters = "(a)-(c)"
    figure = "cs336.sharding_memory_and_time"
    MEMORY, KINDS, _, TIMES, ZERO = details
    # Moment: the peak up to it, and whose parts.
    MOMENTS = {  # noqa: RUF012
        "after model init": ("init_gib", "after model init"),
        "before optimizer step": ("passes_gib", "peak of forward, backward, averaging"),
        "after optimizer step": ("step_gib", "peak of the optimizer step"),
    }
    PARTS = ("parameters_gib", "gradients_gib", "optimizer_state_gib")

    def _prepare(self, site: Site) -> None:
        sharded = handed_in(site, self.TIMES, "sharded (ours)")
        self.optimizers = {"unsharded": "AdamW, unsharded", "sharded": sharded}
        self.is_yours = YOURS in sharded
        self.unit, self.scale = ("GB", 1) if site.gpu else ("MB", 1000)

    def parts(self) -> Iterator[Part]:
        """(a) peaks and their parts; (b) times; (c) messages."""
        rows, unit = ran(self.site, self.MEMORY), self.unit
        on = self.site.ranks(WORLDS[0])
        theirs = self.optimizers["sharded"] if self.site.has_subject else "sharded"
        found = {(one, moment): self.parts_of(one, moment) for one in self.optimizers for moment in self.MOMENTS}
        held, held_less = (self.of(self.MEMORY, "before_step_gib", one) for one in self.optimizers)
        gradients = self.of(self.KINDS, "gradients_gib", "unsharded", moment="directly before the step")
        of_whom = {one: self.row(self.MEMORY, one) for one in self.optimizers}
        if rows:
            yield Table(
                f"(a) Peak of allocated memory and its parts, {unit}.",
                f"{setup(rows[0], on)}, one run; before the optimizer step: peak of forward, backward and averaging; "
                "after it: peak of the step; parts at that peak.",
                ["optimizer", "moment", "peak", "parameters", "gradients", "optimizer state", "other"],
                [
                    # Parts are of peaks of training.
                    [
                        *(theirs if one == "sharded" else one, moment, shown(of[0], of_whom[one])),
                        *(shown(part, of_whom[one]) if "step" in moment else NO_SUCH_THING for part in of[1:]),
                    ]
                    for (one, moment), of in found.items()
                ],
                f"Held directly before the step: unsharded {held}, sharded {held_less} {unit}, of which gradients "
                f"{gradients}.",
                self.steps(),
                "Published, MiB, TF32: unsharded 7805, 34105, 31565; sharded 7805, 26313, 23724." * self.site.gpu,
            )
        (init, before, after), (init_less, before_less, after_less) = (
            [found[one, moment] for moment in self.MOMENTS] for one in self.optimizers
        )
        temporaries = "The unsharded step also holds temporaries of all parameters; the published one does not."
        yield Lettered(
            "a",
            f"Sharding takes optimizer state from {before[3]} to {before_less[3]} {unit}.",
            f"The peak goes from {before[0]} to {before_less[0]} {unit} before the step, from {after[0]} to "
            f"{after_less[0]} in it.",
            temporaries if after[4].value >= after[1].value else "",
        )
        plain, sharded = (self.time("step_ms", one) for one in self.optimizers)
        whole, own = (self.time("optimizer_ms", one) for one in self.optimizers)
        exchange = "" if self.is_yours else f"; timed apart, the exchange takes {self.time('exchange_ms', 'sharded')}"
        yield Lettered(
            "b",
            f"A step takes {sharded} ms sharded, {plain} unsharded{noise(plain, sharded)}.",
            f"The optimizer takes {own} ms sharded, with its exchange, {whole} unsharded{exchange}.",
        )
        yield Lettered("c", *self.messages())
        row = saved(self.site)
        gained, world = figure(row, "saved_gib"), entry(row, "world_size")
        share = self.time("step_ms", "sharded", world).share(self.time("step_ms", "unsharded", world))
        if gained.value >= 0.1:
            sharding = f"Sharding the optimizer state on {world} GPUs saves {gained} GB per GPU"
            time = f"a step takes {share} % of the unsharded time"
            yield Finding(10, "several devices", f"{sharding} directly before its update; {time}.")
        if self.is_yours:  # the figure has ours
            return
        peaks = [[moment[0] for moment in of] for of in ((init, before, after), (init_less, before_less, after_less))]
        most, most_less = (ends(of)[1] for of in peaks)
        step = (
            "changes the step within noise" if plain.within_noise(sharded) else f"the step from {plain} to {sharded} ms"
        )
        yield Title(f"Sharding on {on} takes the peak from {most} to {most_less} {unit} and {step}")

    def row(self, table: str, optimizer: str, world: str = WORLDS[0], **levels: str) -> Row | None:
        """A row of an optimizer."""
        known = {"implementation": self.optimizers[optimizer], "world_size": world}
        return self.site.row(table, **training(self.site, table), **known, **levels)

    def of(self, table: str, column: str, optimizer: str, world: str = WORLDS[0], **levels: str) -> Figure:
        """A figure of an optimizer; memory in the table's unit."""
        row = self.row(table, optimizer, world, **levels)
        return figure(row, column, self.scale if column.endswith("_gib") else 1.0)

    def parts_of(self, optimizer: str, moment: str) -> list[Figure]:
        """Peak up to a moment, its parts, and what else it holds."""
        column, at = self.MOMENTS[moment]
        peak = self.of(self.MEMORY, column, optimizer)
        parts = [self.of(self.KINDS, part, optimizer, moment=at) for part in self.PARTS]
        return [peak, *parts, Figure(peak.value - sum(part.value for part in parts))]

    def time(self, column: str, optimizer: str, world: str = WORLDS[0]) -> Figure:
        """Time of a step or a part of it, ms."""
        return self.of(self.TIMES, column, optimizer, world)

    def steps(self) -> str:
        """Steps with both optimizers, by devices."""
        said: list[str] = []
        for world in WORLDS:
            plain, sharded = (self.time("step_ms", one, world) for one in self.optimizers)
            both = f"{plain!s}, {sharded!s}" if said else f"unsharded {plain!s}, sharded {sharded!s} ms"
            said += [f"{both} on {self.site.ranks(world)}"] if plain and sharded else []
        of = self.site.of_so_many(self.TIMES, "step_ms_n", **training(self.site, self.TIMES))
        return f"Step, median ± half IQR{of}: {'; '.join(said)}." if said else ""

    def messages(self) -> list[str]:
        """What is sent in a step, by stage 1 and by ours."""
        levels = {"size": training(self.site, self.ZERO)["size"], "world_size": WORLDS[0]}
        schemes = ("ZeRO stage 1", "ours: whole parameters")
        stage, ours = (self.site.row(self.ZERO, scheme=scheme, **levels) for scheme in schemes)
        sent, own = (f"{figure(row, 'sent_gib', self.scale)} {self.unit}" for row in (stage, ours))
        calls, own_calls = (replace(figure(row, "messages"), exact=True) for row in (stage, ours))
        differences = (
            "Stage 1 cuts each state evenly, ours gives whole tensors to ranks. Stage 1 uses reduce-scatter and "
            "all-gather, ours all-reduce and broadcast."
        )
        said = f"ZeRO stage 1 sends {sent} per step in {calls} messages"
        return [f"{said}."] if self.is_yours else [f"{said}, ours {own} in {own_calls}.", Why(differences)]


def saved(site: Site) -> Row | None:
    """What sharding saves on most ranks directly before the step; what a user's own saves is in details."""
    whose = handed_in(site, OptimizerStateShardingAccounting.TIMES, "sharded (ours)")
    levels = {"implementation": whose, "moment": "directly before the step"}
    return site.largest("cs336.sharding_saved", "saved_gib", "world_size", **levels)


PROBLEMS = (
    DistributedCommunicationSingleNode,
    NaiveDdp,
    NaiveDdpBenchmarking,
    MinimalDdpFlatBenchmarking,
    DdpOverlapIndividualParameters,
    DdpOverlapIndividualParametersBenchmarking,
    DdpOverlapBucketed,
    DdpBucketedBenchmarking,
    CommunicationAccounting,
    OptimizerStateSharding,
    OptimizerStateShardingAccounting,
)
