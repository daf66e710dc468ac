"""Passes to trace: inference and full training steps, each phase in a separate range.

`python -m perfscribe.experiments.cs336.nsys_profile.program REQUEST ANSWER` runs under a profiler: it reads the JSON
file REQUEST (factors, data_folder, full_step) and writes the host clock's ms by phase to the JSON file ANSWER:
{"host_ms": …}, or {"error": …}.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import read
from perfscribe.experiments.cs336.nsys_profile.measure import Passes
from perfscribe.instruments.profiling import ranges
from perfscribe.instruments.timing import Mark, synchronise, time_host, time_phases

if TYPE_CHECKING:
    from perfscribe.models.training_step import Step

# A phase of a full step ends where Step.full() marks it; its range is open until then.
PHASE_RANGES = {"forward": ranges.FORWARD, "backward": ranges.BACKWARD, "optimizer": ranges.OPTIMIZER}


def traced_passes(step: Step, *, warmup: int, timed: int, full_step: bool) -> dict[str, list[float]]:
    """Run passes with every phase in a range and warm-up in another; return host-clock ms by phase.

    The device is synchronised before a range closes, so that a range on the host contains all work launched in it.
    full_step: whether training steps follow the inference passes.
    """
    step.model.use_attention(ranges.annotated_scaled_dot_product_attention)
    with ranges.annotate(ranges.WARMUP):
        for _ in range(warmup):
            step.inference()
        if full_step:
            step.make_optimizer()
            for _ in range(warmup):
                step.zero_grad()
                step.full()
        synchronise(step.device)

    def inference() -> None:
        with ranges.annotate(ranges.INFERENCE):
            step.inference()
            synchronise(step.device)

    def ranged_step(mark: Mark) -> None:
        """Run a full step in a range, each phase in a range inside it."""
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

    found = {"inference": time_host(inference, warmup=0, timed=timed, device=step.device).samples_ms}
    if full_step:
        phases = time_phases(ranged_step, prepare=step.zero_grad, warmup=0, timed=timed, device=step.device)
        found |= {name: phases[name].samples_ms for name in PHASE_RANGES} | {"full_step": phases["step"].samples_ms}
    return found


def main(request_file: str, answer_file: str) -> None:
    """Build the requested step, run its passes, write the answer, or the error's text."""
    from perfscribe.models.training_step import build

    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    answer: dict[str, Any] = {"error": "stopped before it was done"}
    try:
        level = read(request["factors"], Passes)
        step = build(level, request["data_folder"])
        counts = {"warmup": level.warmup_steps, "timed": level.traced_steps}
        answer = {"host_ms": traced_passes(step, **counts, full_step=request["full_step"])}
    except Exception as error:
        from perfscribe.instruments.memory import is_oom

        # The reader recognises an out-of-memory error by its unchanged text.
        answer = {"error": str(error) if is_oom(error) else f"{type(error).__name__}: {error}"}
        raise
    finally:
        Path(answer_file).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
