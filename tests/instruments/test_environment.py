"""Identity, provenance, capabilities, processes and memory: with recorded NVML values and on the machine at hand."""

import errno
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
from fake_nvml import FakeNvml, Gpu

from perfscribe.config import load
from perfscribe.plan.plan import planned_cells
from perfscribe.records import environment


@pytest.fixture
def h200(monkeypatch):
    """Two H200 of one host; CUDA_VISIBLE_DEVICES unset; torch built for CUDA 13.0."""
    nvml = FakeNvml(2)
    monkeypatch.setattr(environment, "open_nvml", lambda: nvml)
    monkeypatch.setattr(environment, "_version_file", lambda name: {"__version__": "2.11.0+cu130", "cuda": "13.0"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return nvml


def test_identity_of_recorded_machine(h200, monkeypatch):
    monkeypatch.setattr(environment.binding, "granted", lambda: (0, 3, 5, 7, 9))  # those that the job was given
    found = environment.identity(["torch", "os", "perfscribe", "no_such_library"])
    assert found["gpu_model"] == "NVIDIA H200" and found["gpu_count"] == 2
    assert found["gpu_memory_bytes"] == 143771 * 2**20 and found["gpu_power_limit_w"] == 700
    assert found["driver_version"] == "580.159.04" and found["cuda_driver_version"] == "13.0"
    assert found["cpu_cores"] == 5
    assert found["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert set(found["libraries"]) == {"torch", "no_such_library"} and found["libraries"]["no_such_library"] is None


def test_devices_keep_the_order_named_and_skip_those_not_granted(h200, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert environment.visible_gpus() == [h200.gpus[1], h200.gpus[0]]
    h200.gpus[0].may_open = False  # as under Slurm's device cgroup: number 0 is the first that may be opened
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert environment.visible_gpus() == [h200.gpus[1]]


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
        found = environment.identity(())
        assert environment.gpus_by_uuid()[1] == [uuid], named
        assert (found["gpu_count"], found["gpu_memory_bytes"]) == (1, 16 * 2**30) and "1g" in found["gpu_model"]
    for named, expected in {"2": 1, "2,3": 2, "2,9,3": 1, "2,GPU-1aaa-bbb": 1, "2,2": 0, "0,0": 0, "MIG-c": 0}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert len(environment.visible_gpus()) == expected, named
    h200.gpus = [Gpu("GPU-a", slices=[])]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert environment.missing(["cuda"]) == "the GPU is in MIG mode and has no slice"


def test_identity_id_ignores_order_and_sees_every_value(h200):
    found = environment.identity(["torch"])
    key = environment.identity_id(found)
    assert re.fullmatch("[0-9a-f]{12}", key)
    assert environment.identity_id(dict(reversed(found.items()))) == key
    assert environment.identity_id(json.loads(json.dumps(found))) == key  # as it comes back from a journal
    h200.gpus[1].power_limit_mw = 500_000
    assert environment.identity_id(environment.identity(["torch"])) != key
    assert environment.identity_id({"a": 1}) == "015abd7f5cc5"  # fixed: journals of other machines rely on it


def test_local_version_part_comes_from_the_source(tmp_path, monkeypatch):
    """PyPI's wheels of torch give 2.11.0 as metadata and 2.11.0+cu130 in torch/version.py."""
    package = tmp_path / "localpart"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (package / "version.py").write_text(
        "__version__ = '2.11.0+cu130'\ncuda: str | None = '13.0'\nhip: str | None = None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(environment, "_distributions", lambda: {"localpart": ["localpart"]})
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.11.0")
    assert environment.library_version("localpart") == "2.11.0+cu130"
    assert environment._version_file("localpart")["cuda"] == "13.0"


def git(root, *arguments):
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, "-C", str(root), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_processor_has_one_name_whatever_the_language(tmp_path, monkeypatch):
    """On Arm the name is lscpu's, which says `Modellname` to who reads German."""
    lscpu = tmp_path / "lscpu"
    lscpu.write_text('#!/bin/sh\n[ "$LC_ALL" = C ] && echo "Model name: Grace" || echo "Modellname: Grace"\n')
    lscpu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setattr(environment, "Path", lambda _: tmp_path / "no cpuinfo")
    assert environment.cpu_model.__wrapped__() == "Grace"


def test_provenance_of_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFSCRIBE_COMMIT", "not asked where git answers")
    git(tmp_path, "init", "-q")
    (tmp_path / "perfscribe").mkdir()
    for name in ("perfscribe/a.py", "config.yaml"):
        (tmp_path / name).write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    found = environment.provenance(tmp_path)
    assert found["commit"] == git(tmp_path, "rev-parse", "HEAD") and found["dirty"] is False
    for name in ("config.yaml", "notes.txt"):  # neither settings nor what lies beside is code
        (tmp_path / name).write_text("2")
        assert environment.provenance(tmp_path)["dirty"] is False
    (tmp_path / "perfscribe" / "b.py").write_text("new")
    assert environment.provenance(tmp_path)["dirty"] is True
    (tmp_path / "perfscribe" / "b.py").unlink()
    (tmp_path / "perfscribe" / "a.py").write_text("2")
    assert environment.provenance(tmp_path)["dirty"] is True


def test_git_is_asked_about_this_checkout_alone(tmp_path, monkeypatch):
    """Whatever variables a hook or an alias of git leaves; where it says nothing, that is told with the remedy."""
    here, other = tmp_path / "here", tmp_path / "other"
    for root in (here, other):
        root.mkdir()
        git(root, "init", "-q")
        git(root, "commit", "-q", "--allow-empty", "-m", root.name)
    head = git(here, "rev-parse", "HEAD")
    named = {"GIT_DIR": other / ".git", "GIT_WORK_TREE": other, "GIT_INDEX_FILE": other / "i", "GIT_COMMON_DIR": other}
    for name, path in named.items():
        monkeypatch.setenv(name, str(path))
    assert environment._commit(here) == (head, False) and not environment.why_no_commit(here)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert environment._commit(here)[0] is None
    why = environment.why_no_commit(here)
    assert f"git config --global --add safe.directory {here}" in why and "PERFSCRIBE_COMMIT" in why
    assert not environment.why_no_commit(tmp_path)  # a copy without .git
    monkeypatch.setenv("PERFSCRIBE_COMMIT", head)
    assert environment._commit(here) == (head, None) and not environment.why_no_commit(here)


def test_provenance_variables_and_json(h200, tmp_path, monkeypatch):
    kept = {"NCCL_NVLS_ENABLE", "PYTORCH_CUDA_ALLOC_CONF", "OMP_NUM_THREADS", "TORCHINDUCTOR_CACHE_DIR"}
    for name, value in {**dict.fromkeys(kept, "x"), "MY_NCCL_TOKEN": "secret", "SLURM_JOB_ID": "4711"}.items():
        monkeypatch.setenv(name, value)
    found = environment.provenance(tmp_path)
    assert kept <= set(found["variables"])
    assert "MY_NCCL_TOKEN" not in found["variables"] and found["slurm_job_id"] == "4711"
    assert found["gpu_clocks_mhz"] == [{"sm": 1980, "memory": 3201, "sm_max": 1980}] * 2
    json.dumps(found)


def test_what_is_missing_is_named(h200, monkeypatch):
    monkeypatch.setattr(environment, "_installed", lambda module: True)
    assert environment.missing(["cuda", "bf16"]) is None
    said = "unknown capability 'cudaa', expected cuda:<GPUs>, nodes:<nodes> or one of: cuda, "
    with pytest.raises(ValueError, match=said):
        environment.missing(["cudaa"])
    monkeypatch.setattr(environment, "_version_file", lambda name: {"cuda": None})
    assert environment.missing(["cuda"]) == "torch is a build without CUDA"
    monkeypatch.setattr(environment, "open_nvml", lambda: None)
    assert [one.reason for one in environment.unmet(["cuda"])] == ["no CUDA device", "torch is a build without CUDA"]
    monkeypatch.setattr(environment, "_installed", lambda module: module != "pynvml")
    assert environment.missing(["cuda"]) == "nvidia-ml-py is missing"


def test_cuda_hidden_driver_too_old_or_gpu_without_bf16(h200, monkeypatch):
    monkeypatch.setattr(environment, "_installed", lambda module: True)
    h200.gpus = [Gpu("GPU-old", name="Tesla V100", capability=(7, 0))]
    assert environment.missing(["cuda"]) is None and "bf16" in environment.missing(["bf16"])
    h200.cuda = 12080
    assert "driver is older" in environment.missing(["cuda"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert environment.missing(["cuda"]) == "CUDA_VISIBLE_DEVICES hides every GPU"


@pytest.mark.parametrize(
    ("fails", "number", "reason"),
    [
        ("create_connection", errno.ENETUNREACH, "the loopback interface is down (ip link set lo up)"),
        ("create_server", errno.EADDRNOTAVAIL, "has no address 127.0.0.1 (ip addr add 127.0.0.1/8 dev lo)"),
        ("create_server", errno.EMFILE, ""),  # not the interface's fault
    ],
)
def test_ranks_wait_for_no_loopback_that_is_down(monkeypatch, fails, number, reason):
    """They would wait for each other until the cell's time limit."""

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(environment.socket, fails, refuse)
    monkeypatch.setattr(environment, "_loopback_error", environment._loopback_error.__wrapped__)
    cells = planned_cells(load(environment.ROOT / "config.yaml"), "all_reduce", "cpu")
    status, said = environment.shortfall(next(cell.requires for cell in cells if not cell.skip)) or ("", "")
    assert said.endswith(reason) and status == ("unsupported" if reason else "")
    nodes, trained = (planned_cells({}, name, "cpu") for name in ("communication_nodes", "single_gpu"))
    assert not any("loopback" in cell.requires for cell in (*nodes, *trained))


def test_nodes_by_variables_alone_are_none(monkeypatch):
    """A container within a Slurm job has the job's variables, and neither Slurm nor the names of its nodes."""
    monkeypatch.setattr(environment, "_nodes", environment._nodes.__wrapped__)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    for said, reason in {
        "gpu[01-02].invalid": "gpu01.invalid, a node of this job by its variables, has no address here",
        "gpu[1-": "SLURM_JOB_NODELIST: 'gpu[1-' is no list of hosts",
    }.items():
        monkeypatch.setenv("SLURM_JOB_NODELIST", said)
        assert environment.nodes_granted() == 1
        assert environment.shortfall(["nodes:2"]) == ("unsupported", reason)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "localhost,127.0.0.1")
    assert environment.nodes_granted() == 2 and environment.shortfall(["nodes:2"]) is None


def test_memory_limit(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_MEM_PER_NODE", raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100 * 2**30))

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    assert environment.memory_limit_bytes(tmp_path) == 100 * 2**30
    write("proc/self/cgroup", "4:memory:/job/7\n5:cpu,cpuacct:/job\n0::/slice/unit\n")
    write("sys/fs/cgroup/memory/job/7/memory.limit_in_bytes", "9223372036854771712\n")
    write("sys/fs/cgroup/slice/unit/memory.max", "max\n")
    assert environment.memory_limit_bytes(tmp_path) == 100 * 2**30
    write("sys/fs/cgroup/slice/memory.max", str(50 * 2**30))  # a group above binds too
    assert environment.memory_limit_bytes(tmp_path) == 50 * 2**30
    write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(40 * 2**30))
    assert environment.memory_limit_bytes(tmp_path) == 40 * 2**30
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "32768")
    assert environment.memory_limit_bytes(tmp_path) == 32 * 2**30
    for nothing in ("0", "", "32G"):
        monkeypatch.setenv("SLURM_MEM_PER_NODE", nothing)
        assert environment.memory_limit_bytes(tmp_path) == 40 * 2**30
