"""Stands in for torch.cuda, so that what timers ask of a GPU, and in which order, shows on a machine without one."""

from types import SimpleNamespace

import torch


class FakeCuda:
    """Stands in for torch.cuda: a stream that takes 1 ms for each piece of work and notes the order of everything."""

    def __init__(self, monkeypatch):
        self.log = []
        self.clock_ms = 0.0
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: self.log.append("synchronise"))
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: FakeEvent(self, enable_timing))
        monkeypatch.setattr(torch, "empty", self.empty)

    def empty(self, size, dtype, device):
        assert (size, dtype, device) == (256 * 2**20, torch.uint8, "cuda")
        return SimpleNamespace(zero_=lambda: self.work("flush"))

    def work(self, name, ms=1.0):
        self.log.append(name)
        self.clock_ms += ms


class FakeEvent:
    def __init__(self, cuda, enable_timing):
        assert enable_timing
        self.cuda = cuda

    def record(self):
        self.cuda.log.append("event")
        self.at_ms = self.cuda.clock_ms

    def elapsed_time(self, end):
        assert self.cuda.log[-1] in ("synchronise", "wait"), "events are read before the device has finished"
        return end.at_ms - self.at_ms
