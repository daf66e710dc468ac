"""Text of `./run doctor`: the machine and its tools, what it can measure, and what is missing."""

import platform
import shutil
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import psutil
from tabulate import tabulate

from perfscribe.base.cells import Cell
from perfscribe.instruments import tools
from perfscribe.instruments.profiling import nsys
from perfscribe.plan import capabilities, subjects
from perfscribe.records import checkout, libraries, machine
from perfscribe.run import host_memory
from perfscribe.subjects import remedy

TOOLS = ("nsys", "srun", "mpiexec")
GIB = 2**30


def report(units: Sequence[tuple[str, list[Cell]]], checkouts: Sequence[subjects.Subject] = ()) -> str:
    """Return the whole text, which contains paths of this machine: not for publishing.

    units: planned cells by experiment. checkouts: subjects, whose unimplemented adapters are listed.
    """
    sections = {
        "Machine": _pairs(_machine()),
        "Tools": _pairs(_tools()),
        "What is measured here": _measured(units),
        "What is missing": _missing(units),
    }
    if checkouts:
        sections["Your code"] = _pairs((checkout.name, _written(checkout)) for checkout in checkouts)
    return "\n\n".join(f"{title}\n{'-' * len(title)}\n{body}" for title, body in sections.items()) + "\n"


def _written(subject: subjects.Subject) -> str:
    lacking = ", ".join(subject.lacking.values())
    has = ", ".join(subject.kernels) or "nothing"
    python = f"not Python {platform.python_version()}"
    others = {"not written, so ours": lacking, python: ", ".join(subject.broken)}
    parts = [f"written: {has}", *(f"{what}: {named}" for what, named in others.items() if named)]
    return "; ".join([*parts, *([remedy(subject.missing)] if subject.missing else [])])


def _pairs(rows: Iterable[tuple[str, Any]]) -> str:
    return tabulate(list(rows), tablefmt="plain", disable_numparse=True)


def _machine() -> list[tuple[str, str]]:
    identity = machine.identity(())
    gpus, watts = identity["gpu_count"], identity["gpu_power_limit_w"]
    memory = identity["gpu_memory_bytes"]
    rows = [
        ("CPU", identity["cpu_model"] + " (virtual machine)" * identity["is_virtual"]),
        ("cores", f"{identity['cpu_cores']} granted of {psutil.cpu_count() or 'an unknown number'}"),
        ("memory", f"{_gib(psutil.virtual_memory().total)}, {_gib(host_memory.limit_bytes())} to use"),
        ("GPU", f"{gpus} × {identity['gpu_model']}" if gpus else capabilities.missing(["cuda"]) or "none"),
    ]
    if gpus:
        driver, cuda = (identity[key] or "not told" for key in ("driver_version", "cuda_driver_version"))
        rows += [
            ("GPU memory", _gib(memory) if memory else "not told"),
            ("power limit", f"{watts} W" if watts else "not told"),
            ("driver", f"{driver}, CUDA {cuda}"),
        ]
    torch = libraries.version("torch") or "not installed"
    rows += [("Python", platform.python_version()), ("torch", torch)]
    if why := checkout.why_no_commit(capabilities.ROOT):
        rows.append(("commit", f"unknown: {why}"))
    return [*rows, ("platform", f"{identity['platform']}, {platform.release()}")]


def _gib(amount_bytes: int) -> str:
    return f"{amount_bytes / GIB:.1f} GiB"


def _tools() -> list[tuple[str, str]]:
    return [(name, _nsys() if name == "nsys" else _place(name)) for name in TOOLS]


def _place(name: str) -> str:
    path = tools.find_tool(name)
    return f"{path}{'' if shutil.which(name) else '  (not on PATH)'}" if path else "not found"


def _nsys() -> str:
    """Path of nsys, or the reason why it cannot be used."""
    try:
        nsys.find()
    except nsys.NsysError as error:
        return str(error).removeprefix("nsys was ")
    return _place("nsys")


def _measured(units: Sequence[tuple[str, list[Cell]]]) -> str:
    here = {name: sum(not (cell.skip or capabilities.unmet(cell.requires)) for cell in cells) for name, cells in units}
    nothing = [name for name, count in here.items() if not count]
    left = f"; nothing of {', '.join(nothing)}" if nothing else ""
    return f"{sum(here.values())} of {sum(len(cells) for _, cells in units)} cells, those of preset gpu counted{left}"


def _missing(units: Sequence[tuple[str, list[Cell]]]) -> str:
    """One line per missing thing, with the most demanding remedy and the experiments that need it."""
    fixes: dict[str, list[tuple[str, str]]] = {}
    for name, cells in units:
        required = dict.fromkeys(requirement for cell in cells for requirement in cell.requires)
        for condition in capabilities.unmet(required):
            fixes.setdefault(condition.reason, []).append((condition.fix, name))
    experiments = [name for name, _ in units]
    lines = []
    for reason, pairs in fixes.items():
        fix = max((fix for fix, _ in pairs), key=lambda fix: (len(fix), fix))
        lines.append(f"{reason}: {fix}; for {_named({name for _, name in pairs}, experiments)}")
    return "\n".join(lines) or "nothing"


def _named(names: Collection[str], experiments: Sequence[str]) -> str:
    """List these experiments, or "all but" the others if those are fewer."""
    others = [name for name in experiments if name not in names]
    if not others:
        return "all"
    return f"all but {', '.join(others)}" if len(others) < len(names) else ", ".join(sorted(names))
