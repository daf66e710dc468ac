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
    slices: list["Gpu"] | None = None  # of a GPU in MIG mode
    place: tuple[int, int] = (0, 0)  # of a slice: its GPU instance and compute instance

    def __post_init__(self):
        self.clock_reads = itertools.cycle(self.clocks_mhz)
        self.reason_reads = itertools.cycle(self.reasons)
        self.utilisation_reads = itertools.cycle(self.utilisation)
        self.used_reads = itertools.cycle(self.used_bytes)


class FakeNvml:
    """Functions by NVML's names; `lacking` names those that answer "not supported"."""

    NVMLError = NVMLError

    def __init__(self, gpus=1, lacking=()):
        self.gpus = [Gpu(f"GPU-{index}aaa-bbb") for index in range(gpus)] if isinstance(gpus, int) else list(gpus)
        self.lacking, self.cuda = set(lacking), 13000
        self.functions = {
            "nvmlSystemGetDriverVersion": lambda: "580.159.04",
            "nvmlSystemGetCudaDriverVersion_v2": lambda: self.cuda,
            "nvmlSystemGetProcessName": self._refuse,
            "nvmlDeviceGetCount": lambda: len(self.gpus),
            "nvmlDeviceGetHandleByIndex": lambda index: self._opened(self.gpus[index]),
            "nvmlDeviceGetHandleByUUID": lambda uuid: self._opened(*(gpu for gpu in self._every() if gpu.uuid == uuid)),
            "nvmlDeviceGetMigMode": lambda gpu: self._refuse() if gpu.place[0] else [int(gpu.slices is not None)] * 2,
            "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": lambda gpu, slot: self._opened(*gpu.slices[slot : slot + 1]),
            "nvmlDeviceGetGpuInstanceId": lambda gpu: gpu.place[0],
            "nvmlDeviceGetComputeInstanceId": lambda gpu: gpu.place[1],
            "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
            "nvmlDeviceGetName": lambda gpu: gpu.name,
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=next(gpu.utilisation_reads), memory=0),
            "nvmlDeviceGetPowerManagementLimit": lambda gpu: gpu.power_limit_mw,
            "nvmlDeviceGetCudaComputeCapability": lambda gpu: gpu.capability,
            "nvmlDeviceGetClockInfo": lambda gpu, kind: {1: next(gpu.clock_reads), 2: 3201}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: {1: 1980, 2: 3201}[kind],
            "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: next(gpu.reason_reads),
            "nvmlDeviceGetComputeRunningProcesses": lambda gpu: gpu.processes,
        }

    def __getattr__(self, name):
        if name not in self.functions:
            raise AttributeError(name)
        return self._refuse if name in self.lacking else self.functions[name]

    def _refuse(self, *_):
        raise NVMLError("Not Supported")

    def _every(self):
        return [one for gpu in self.gpus for one in (gpu, *(gpu.slices or ()))]

    def _opened(self, *found):
        if [gpu.may_open for gpu in found] != [True]:
            raise NVMLError("Insufficient Permissions")
        return found[0]

    def _memory(self, gpu):
        used = next(gpu.used_reads)
        return SimpleNamespace(total=gpu.memory_bytes, used=used, free=gpu.memory_bytes - used)
