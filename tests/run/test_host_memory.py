"""Limits of host memory."""

from types import SimpleNamespace

import psutil

from perfscribe.run import host_memory


def test_memory_limit(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_MEM_PER_NODE", raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100 * 2**30))

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    assert host_memory.limit_bytes(tmp_path) == 100 * 2**30
    write("proc/self/cgroup", "4:memory:/job/7\n5:cpu,cpuacct:/job\n0::/slice/unit\n")
    write("sys/fs/cgroup/memory/job/7/memory.limit_in_bytes", "9223372036854771712\n")
    write("sys/fs/cgroup/slice/unit/memory.max", "max\n")
    assert host_memory.limit_bytes(tmp_path) == 100 * 2**30
    write("sys/fs/cgroup/slice/memory.max", str(50 * 2**30))  # a group above binds too
    assert host_memory.limit_bytes(tmp_path) == 50 * 2**30
    write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(40 * 2**30))
    assert host_memory.limit_bytes(tmp_path) == 40 * 2**30
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "32768")
    assert host_memory.limit_bytes(tmp_path) == 32 * 2**30
    for nothing in ("0", "", "32G"):
        monkeypatch.setenv("SLURM_MEM_PER_NODE", nothing)
        assert host_memory.limit_bytes(tmp_path) == 40 * 2**30
