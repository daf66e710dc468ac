"""How a call is timed on a device, and how its samples are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perfscribe.base.cells import Measurement
from perfscribe.instruments.timing import Timing, record, time_host

if TYPE_CHECKING:
    from perfscribe.instruments.graph_timing import Make, Recorder

# Digits of a sample that are kept: events resolve 0.5 us, and there are hundreds of cells.
DIGITS = 5
HOST_WARMUP = 1
LAUNCHED_SAMPLES = 5


class Clocks:
    """The timers of a device: graph replay and plain events on CUDA, the host clock on the CPU.

    recorder: what captures graphs, or None on the CPU. calls: for each quantity how many calls a replay held.
    fallbacks: for each quantity that could not be captured, why.
    """

    def __init__(self, recorder: Recorder | None, samples: int) -> None:
        self._recorder, self._samples = recorder, samples
        self.calls: dict[str, int] = {}
        self.fallbacks: dict[str, str] = {}

    def time(self, measurement: Measurement, name: str, make: Make) -> None:
        """Keep <name>_ms of the calls that make() gives, and on CUDA <name>_launched_ms, with the launches."""
        if self._recorder is None:
            timing = time_host(make(), warmup=HOST_WARMUP, timed=self._samples, device="cpu")
            keep(measurement, f"{name}_ms", timing)
            return
        from perfscribe.instruments.graph_timing import time_launched, time_replays

        replayed = time_replays(make, samples=self._samples, recorder=self._recorder)
        keep(measurement, f"{name}_ms", replayed.timing)
        self.calls[name] = replayed.calls_per_sample
        if replayed.fallback:
            self.fallbacks[name] = replayed.fallback
        call_ms = min(replayed.timing.samples_ms)
        launched = time_launched(make, samples=min(LAUNCHED_SAMPLES, self._samples), call_ms=call_ms)
        # Its warm-up call is that of a call which has run many times by now.
        keep(measurement, f"{name}_launched_ms", replace(launched, warmup_ms=[]))

    def values(self) -> dict[str, str]:
        """What a record says of the timing: calls a replay in the order timed, and why anything was not replayed."""
        figures = {"calls_per_sample": " ".join(map(str, self.calls.values()))} if self.calls else {}
        told = "; ".join(f"{name}: {reason}" for name, reason in self.fallbacks.items())
        return figures | ({"no_graph": told} if told else {})


def clocks(device: str, samples: int) -> Clocks:
    """The timers of this device."""
    if device != "cuda":
        return Clocks(None, samples)
    from perfscribe.instruments.graph_timing import CudaGraphs

    return Clocks(CudaGraphs(), samples)


def keep(measurement: Measurement, name: str, timing: Timing) -> None:
    """Add a timing to the measurement, every sample to DIGITS significant digits."""
    rounded = replace(timing, samples_ms=_rounded(timing.samples_ms), warmup_ms=_rounded(timing.warmup_ms))
    record(measurement, name, rounded)


def _rounded(samples: list[float]) -> list[float]:
    return [float(f"{sample:.{DIGITS}g}") for sample in samples]
