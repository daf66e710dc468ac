"""Stands in for pynvml in tests, with values recorded on an H200 (driver 580.159.04, CUDA 13.0)."""

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace


class NVMLError(Exception):
    pass


@dataclass
class Gpu:
    uuid: str
    name: str = "NVIDIA H200"
    memory_bytes: int = 143771 * 2**20
    power_limit_mw: int = 700_000
    capability: tuple[int, int] = (9, 0)
    clocks_mhz: list[int] = field(default_factory=lambda: [1980])
    reasons: list[int] = field(default_factory=lambda: [0])
    processes: list[SimpleNamespace] = field(default_factory=list)
    utilisation: list[int] = field(default_factory=lambda: [0])
    used_bytes: list[int] = field(default_factory=lambda: [0])
    may_open: bool = True

    def __post_init__(self):
        self.clock_reads = itertools.cycle(self.clocks_mhz)
        self.reason_reads = itertools.cycle(self.reasons)
        self.utilisation_reads = itertools.cycle(self.utilisation)
        self.used_reads = itertools.cycle(self.used_bytes)


class FakeNvml:
    """Functions under NVML's names; `lacking` names those that answer "not supported"."""

    NVMLError = NVMLError

    def __init__(self, gpus=1, lacking=()):
        self.gpus = [Gpu(f"GPU-{index}aaa-bbb") for index in range(gpus)] if isinstance(gpus, int) else list(gpus)
        self.lacking = set(lacking)
        self.driver, self.cuda, self.names = "580.159.04", 13000, {}

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in self.lacking:
            return self._refuse
        return super().__getattribute__(name)

    def _refuse(self, *_):
        raise NVMLError("Not Supported")

    def nvmlSystemGetDriverVersion(self):
        return self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return self.cuda

    def nvmlSystemGetProcessName(self, pid):
        if pid not in self.names:
            raise NVMLError("Not Found")
        return self.names[pid]

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        if not self.gpus[index].may_open:
            raise NVMLError("Insufficient Permissions")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise NVMLError("Not Found")

    def nvmlDeviceGetUUID(self, gpu):
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu):
        return gpu.name

    def nvmlDeviceGetMemoryInfo(self, gpu):
        used = next(gpu.used_reads)
        return SimpleNamespace(total=gpu.memory_bytes, used=used, free=gpu.memory_bytes - used)

    def nvmlDeviceGetUtilizationRates(self, gpu):
        return SimpleNamespace(gpu=next(gpu.utilisation_reads), memory=0)

    def nvmlDeviceGetPowerManagementLimit(self, gpu):
        return gpu.power_limit_mw

    def nvmlDeviceGetCudaComputeCapability(self, gpu):
        return gpu.capability

    def nvmlDeviceGetClockInfo(self, gpu, kind):
        return {1: next(gpu.clock_reads), 2: 3201}[kind]

    def nvmlDeviceGetMaxClockInfo(self, gpu, kind):
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu):
        return next(gpu.reason_reads)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):
        return gpu.processes


def process(pid):
    return SimpleNamespace(pid=pid)
