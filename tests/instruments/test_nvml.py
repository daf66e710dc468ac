"""GPUs through NVML, with values recorded on H200s."""

from fake_nvml import Gpu

from perfscribe.instruments import nvml
from perfscribe.plan import capabilities
from perfscribe.records import machine


def test_devices_keep_the_order_named_and_skip_those_not_granted(h200, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert nvml.visible_gpus() == [h200.gpus[1], h200.gpus[0]]
    h200.gpus[0].may_open = False  # as under Slurm's device cgroup: number 0 is the first that may be opened
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert nvml.visible_gpus() == [h200.gpus[1]]


def test_of_a_sliced_gpu_one_slice_is_measured(h200, monkeypatch):
    """Two GPUs in MIG mode, then a whole one: CUDA gives a process one slice, whatever names it."""

    def sliced(gpu):
        slices = [Gpu(f"MIG-{gpu}{n}", "NVIDIA H200 MIG 1g.18gb", 16 * 2**30, place=(7 + n, 0)) for n in (0, 1)]
        return Gpu(f"GPU-{gpu}", slices=slices)

    h200.gpus = [sliced("a"), sliced("b"), *h200.gpus]
    for named, uuid in {
        None: "MIG-a0",
        "0": "MIG-a0",
        "0,2": "MIG-a0",
        "1,0": "MIG-b0",
        "GPU-b": "MIG-b0",
        "MIG-b1,MIG-a0": "MIG-b1",
        "MIG-GPU-a/8/0": "MIG-a1",
    }.items():
        if named is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        found = machine.identity(())
        assert nvml.gpus_by_uuid()[1] == [uuid], named
        assert (found["gpu_count"], found["gpu_memory_bytes"]) == (1, 16 * 2**30) and "1g" in found["gpu_model"]
    for named, expected in {"2": 1, "2,3": 2, "2,9,3": 1, "2,GPU-1aaa-bbb": 1, "2,2": 0, "0,0": 0, "MIG-c": 0}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert len(nvml.visible_gpus()) == expected, named
    h200.gpus = [Gpu("GPU-a", slices=[])]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert capabilities.missing(["cuda"]) == "the GPU is in MIG mode and has no slice"
