"""Capabilities that a machine lacks, with the reason."""

import errno
import os

import pytest
from fake_nvml import Gpu

from perfscribe.config import load
from perfscribe.plan import capabilities
from perfscribe.plan.plan import planned_cells
from perfscribe.records import libraries


def test_what_is_missing_is_named(h200, monkeypatch):
    monkeypatch.setattr(libraries, "installed", lambda module: True)
    assert capabilities.missing(["cuda", "bf16"]) is None
    said = "unknown capability 'cudaa', expected cuda:<GPUs>, nodes:<nodes> or one of: cuda, "
    with pytest.raises(ValueError, match=said):
        capabilities.missing(["cudaa"])
    assert capabilities.shortfall(["cuda:4"]) == ("skipped", "2 GPUs", "too_few")
    h200.gpus = [Gpu("GPU-old", name="Tesla V100", capability=(7, 0))]
    assert capabilities.missing(["cuda"]) is None and "bf16" in capabilities.missing(["bf16"])
    h200.cuda = 12080
    assert "driver is older" in capabilities.missing(["cuda"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert capabilities.missing(["cuda"]) == "CUDA_VISIBLE_DEVICES hides every GPU"
    h200.gpus = []
    assert capabilities.shortfall(["cuda:4"]) == ("unsupported", "no CUDA device", "unsupported")
    monkeypatch.setattr(libraries, "installed", lambda module: module != "pynvml")
    assert capabilities.missing(["cuda"]) == "nvidia-ml-py is missing"


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

    monkeypatch.setattr(capabilities.socket, fails, refuse)
    monkeypatch.setattr(capabilities, "_loopback_error", capabilities._loopback_error.__wrapped__)
    cells = planned_cells(load(capabilities.ROOT / "config.yaml"), "all_reduce", "cpu")
    status, said, _ = capabilities.shortfall(next(cell.requires for cell in cells if not cell.skip)) or ("", "", "")
    assert said.endswith(reason) and status == ("unsupported" if reason else "")
    nodes, trained = (planned_cells({}, name, "cpu") for name in ("communication_nodes", "single_gpu"))
    assert not any("loopback" in cell.requires for cell in (*nodes, *trained))


def test_nodes_by_variables_alone_are_none(monkeypatch):
    """A container within a Slurm job has the job's variables, and neither Slurm nor the names of its nodes."""
    monkeypatch.setattr(capabilities, "_nodes", capabilities._nodes.__wrapped__)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    for said, reason in {
        "gpu[01-02].invalid": "gpu01.invalid, a node of this job by its variables, has no address here",
        "gpu[1-": "SLURM_JOB_NODELIST: 'gpu[1-' is no list of hosts",
    }.items():
        monkeypatch.setenv("SLURM_JOB_NODELIST", said)
        assert capabilities.nodes_granted() == 1
        assert capabilities.shortfall(["nodes:2"]) == ("unsupported", reason, "unsupported")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "localhost,127.0.0.1")
    assert capabilities.nodes_granted() == 2 and capabilities.shortfall(["nodes:2"]) is None
