"""What a rank's Chrome trace says of its collectives and of all work beside them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

from perfscribe.experiments.communication.waiting import Call
from perfscribe.instruments.profiling.families import COMMUNICATION, family

# Gloo's threads mark their collectives by ranges of this name's beginning; there are no kernels.
GLOO = "gloo:"
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")

Event = Mapping[str, Any]


def read(path: Path, device: str) -> dict[str, Any]:
    """calls: the collectives, as waiting.Call has them; compute_ms: all work beside them. ValueError: no trace."""
    try:
        content = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        events = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"no trace of the torch profiler ({type(error).__name__}: {error})") from error
    return {"calls": [asdict(call) for call in calls(events, device)], "compute_ms": compute_ms(events, device)}


def calls(events: Iterable[Event], device: str) -> list[Call]:
    """The collectives in order of start: NCCL's kernels, or on a CPU what gloo's threads worked on."""
    found = [_call(event, device) for event in events if _is_collective(event, device)]
    return sorted(found, key=lambda call: call.start_ns)


def compute_ms(events: Sequence[Event], device: str) -> float:
    """Sum of kernels, copies and memsets but NCCL's; on a CPU of the time that threads were in operators but c10d's.

    There operators that others called are within those; a thread's time counts once.
    """
    if device == "cuda":
        work = [one for one in events if one.get("cat") in DEVICE_WORK and family(str(one["name"])) != COMMUNICATION]
        return sum(float(one["dur"]) for one in work) / 1000
    threads: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for one in events:
        name = str(one["name"])
        if one.get("cat") == "cpu_op" and "::" in name and not name.startswith(("c10d::", "autograd::", "torch::")):
            threads[one["tid"]].append((float(one["ts"]), float(one["ts"]) + float(one["dur"])))
    return sum(_covered(spans) for spans in threads.values()) / 1000


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the spans together, what several cover counting once."""
    covered, reached = 0.0, 0.0
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def _is_collective(event: Event, device: str) -> bool:
    if device == "cuda":
        return event.get("cat") == "kernel" and family(str(event["name"])) == COMMUNICATION
    return event.get("cat") == "user_annotation" and str(event["name"]).startswith(GLOO)


def _call(event: Event, device: str) -> Call:
    told = event.get("args", {})
    elements = told.get("In msg nelems", 0) if device == "cuda" else _elements(told.get("Input Dims", []))
    return Call(int(elements or 0), round(float(event["ts"]) * 1000), round(float(event["dur"]) * 1000))


def _elements(dims: Any) -> int:
    """Elements of all tensors whose dimensions are listed."""
    return sum(prod(one) for one in dims if isinstance(one, list) and all(isinstance(size, int) for size in one))
