"""The passes that are traced: inference and full training steps, each phase in a range of its own.

`python -m perfscribe.experiments.nsys_profile.program REQUEST ANSWER` is what runs under a profiler: it reads the JSON
file REQUEST (factors, data_folder, full_step) and writes what the host clock read, in ms by phase, to the JSON file
ANSWER: {"host_ms": …}, or {"error": …}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.instruments.profiling import ranges
from perfscribe.instruments.timing import Mark, Timing, synchronise, time_host, time_phases

if TYPE_CHECKING:
    from perfscribe.models.training_step import Step

# A phase of a full step ends where Step.full() marks it; its range is open until then.
PHASE_RANGES = {"forward": ranges.FORWARD, "backward": ranges.BACKWARD, "optimizer": ranges.OPTIMIZER}


def time_inference(step: Step, *, warmup: int, timed: int) -> Timing:
    """Forward passes without a graph, by the host clock."""
    return time_host(step.inference, warmup=warmup, timed=timed, device=step.device)


def time_full_steps(step: Step, *, warmup: int, timed: int) -> dict[str, Timing]:
    """Full training steps by phase, by the host clock; makes the optimizer where there is none."""
    if step.optimizer is None:
        step.make_optimizer()
    return time_phases(step.full, prepare=step.zero_grad, warmup=warmup, timed=timed, device=step.device)


def traced_passes(step: Step, *, warmup: int, timed: int, full_step: bool) -> dict[str, list[float]]:
    """Passes with every phase in a range, the warm-up in one of its own; milliseconds by the host clock, by phase.

    The device is synchronised before a range closes, so that a range on the host holds all work launched in it.
    full_step: whether training steps follow the inference passes, or inference is all.
    """
    from perfscribe.instruments.profiling.annotated_attention import annotated_scaled_dot_product_attention

    step.model.use_attention(annotated_scaled_dot_product_attention)
    with ranges.annotate(ranges.WARMUP):
        for _ in range(warmup):
            step.inference()
        if full_step:
            step.make_optimizer()
            for _ in range(warmup):
                step.zero_grad()
                step.full()
        synchronise(step.device)
    inference = time_host(
        _ranged(ranges.INFERENCE, step.inference, step.device), warmup=0, timed=timed, device=step.device
    )
    found = {"inference": inference.samples_ms}
    if full_step:
        phases = time_phases(
            lambda mark: ranged_step(step, mark), prepare=step.zero_grad, warmup=0, timed=timed, device=step.device
        )
        found |= {name: phases[name].samples_ms for name in PHASE_RANGES} | {"full_step": phases["step"].samples_ms}
    return found


def _ranged(name: str, run: Callable[[], object], device: str) -> Callable[[], None]:
    """The call inside a range that closes once the device is done."""

    def inside() -> None:
        with ranges.annotate(name):
            run()
            synchronise(device)

    return inside


def ranged_step(step: Step, mark: Mark) -> None:
    """A full step in a range, each phase in one inside it; mark(name) is called at the end of each phase."""
    waiting = [*PHASE_RANGES.values()]
    with ranges.annotate(ranges.STEP), ExitStack() as phase:

        def next_phase(ended: str) -> None:
            synchronise(step.device)
            phase.close()
            mark(ended)
            if waiting:
                phase.enter_context(ranges.annotate(waiting.pop(0)))

        phase.enter_context(ranges.annotate(waiting.pop(0)))
        step.full(next_phase)


def run(request: Mapping[str, Any]) -> dict[str, list[float]]:
    """Build the step that the request describes and pass through it."""
    from perfscribe.models.training_step import build

    factors = request["factors"]
    step = build(factors, request["data_folder"])
    counts = {"warmup": factors["warmup_steps"], "timed": factors["traced_steps"]}
    return traced_passes(step, **counts, full_step=request["full_step"])


def main(request_file: str, answer_file: str) -> None:
    """Read the request, run, write the answer; of a failure its text, before it ends the process."""
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    answer: dict[str, Any] = {"error": "stopped before it was done"}
    try:
        answer = {"host_ms": run(request)}
    except Exception as error:
        from perfscribe.instruments.memory import is_oom

        # Running out of memory is told by its own text, from which the reader knows it again.
        answer = {"error": str(error) if is_oom(error) else f"{type(error).__name__}: {error}"}
        raise
    finally:
        Path(answer_file).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
