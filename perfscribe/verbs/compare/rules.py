"""Which comparisons mislead: what is refused, what gets no verdict, what is marked. docs/compare.md says why."""

from __future__ import annotations

from perfscribe.verbs.compare.cells import Cell, Side
from perfscribe.verbs.compare.metrics import SPEED, Metric

# Values that say what work was done: cells that differ in one did not do the same.
DECISIVE = ("parameters", "message_bytes", "gradient_bytes", "steps_per_epoch", "batch_found")
# Values that a reader should know where they differ: how the same work was done.
TELLING = (
    "calls_per_sample",
    "sdpa_backend",
    "algorithm",
    "protocol",
    "links",
    "wrapped_by",
    "weights",
    "data_origin",
    "rows_from",
    "tokenizer",
)
# Flags of cells that others disturbed. What throttles a device is part of the machine, and only marked.
DISTURBED = ("foreign process", "host busy")
# Timers that launches by the host do not reach: events around eager calls and spans of a trace hold the host's gaps.
DEVICE_TIMERS = ("CUDA graph replay",)
UNATTRIBUTABLE = "machine and code changed together: not attributable"


def refused(a: Side, b: Side, one: Cell, other: Cell) -> str:
    """Why no figure of these cells is compared; empty where they are."""
    if one.of_rows("origin") != other.of_rows("origin"):
        return f"origin: {_against(one.of_rows('origin'), other.of_rows('origin'))}"
    if one.of_rows("data_digest") != other.of_rows("data_digest"):
        return "another data set: the digests differ"
    if a.site == b.site and code_differs(one, other) and _differ(a, b, one, other, "hardware"):
        return f"{UNATTRIBUTABLE} ({', '.join(_differ(a, b, one, other, 'hardware'))})"
    for name in DECISIVE:
        if one.values(name) and other.values(name) and one.values(name) != other.values(name):
            return f"other work: {name} {_against(one.values(name), other.values(name))}"
    return ""


def refused_figure(name: str, known: Metric, one: Cell, other: Cell) -> str:
    """Why this figure of cells that are compared is not; empty where it is."""
    timers = [_timers(cell, name, versions=False) for cell in (one, other)]
    if timers[0] != timers[1]:
        return f"another timer: {_against(*timers)}"
    counters = [cell.values("memory_counter") for cell in (one, other)]
    if known.kind == "memory" and counters[0] != counters[1]:
        return f"counted in another way: {_against(*counters)}"
    if known.kind in ("loss", "score") and (one.seed is None or one.seed != other.seed):
        return f"another seed: {_against({one.seed}, {other.seed})}"
    return ""


def withheld(known: Metric, one: Cell, other: Cell) -> str:
    """Why the figure gets no verdict, though its ratio is shown; empty where it gets one."""
    if known.kind not in SPEED:
        return ""
    found = [
        f"{side}: {flag}"
        for side, cell in (("A", one), ("B", other))
        for flag in cell.record.flags
        if flag.startswith(DISTURBED)
    ]
    return f"disturbed: {'; '.join(found)}" if found else ""


def marks(a: Side, b: Side, one: Cell, other: Cell) -> list[str]:
    """What a reader must keep in mind with every figure of these cells."""
    found = [
        f"{name} {_against({one.factors[name]}, {other.factors.get(name)})}"
        for name in one.factors
        if one.factors[name] != other.factors.get(name)
    ]
    if code_differs(one, other):
        found.append("code differs")
    elif a.site == b.site:
        changed = _differ(a, b, one, other, "hardware")
        found.append(f"same code, another machine ({', '.join(changed)})" if changed else "same code")
    if a.site == b.site and (changed := _differ(a, b, one, other, "software")):
        found.append(f"other software ({', '.join(changed)})")
    if one.seed is None or one.seed != other.seed:
        found.append("another seed" if None not in (one.seed, other.seed) else "seed not known")
    if len(one.good) != len(other.good):
        found.append(f"rounds {len(one.good)} against {len(other.good)}")
    for name in TELLING:
        if one.values(name) and other.values(name) and one.values(name) != other.values(name):
            found.append(f"{name} {_against(one.values(name), other.values(name))}")
    for side, cell in (("A", one), ("B", other)):
        found += [f"{side}: {flag}" for flag in cell.record.flags]
        if len(cell.record.environments) > 1:
            found.append(f"{side}: rounds of {len(cell.record.environments)} environments")
    return found


def timer_marks(name: str, one: Cell, other: Cell) -> list[str]:
    """Versions of one and the same timer, where they differ."""
    timers = [_timers(cell, name, versions=True) for cell in (one, other)]
    return [f"timer {_against(*timers)}"] if timers[0] != timers[1] else []


def timer(name: str, cell: Cell) -> str:
    """The timer that read a sample; empty for a value."""
    return " + ".join(sorted(_timers(cell, name, versions=True)))


def code_differs(one: Cell, other: Cell) -> bool:
    """Whether other code measured."""
    return one.of_rows("fingerprint") != other.of_rows("fingerprint")


def _differ(a: Side, b: Side, one: Cell, other: Cell, part: str) -> list[str]:
    """The keys of the identities in which the cells' machines differ."""
    left, right = a.identity(one, part), b.identity(other, part)
    return [key for key in dict.fromkeys((*left, *right)) if left.get(key) != right.get(key)]


def _timers(cell: Cell, name: str, versions: bool) -> set[str]:
    """The timers that read a sample, in all rounds."""
    found = {str(row["timers"][name]) for row in cell.good if name in row["timers"]}
    if versions:
        return found
    return {" ".join(word for word in timer.split() if not word[0].isdigit()) for timer in found}


def _against(left: set, right: set) -> str:
    """What A has against what B has."""
    return " against ".join(" or ".join(sorted(map(str, side))) or "none" for side in (left, right))
