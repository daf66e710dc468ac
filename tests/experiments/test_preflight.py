"""The self-test before trainings: NVIDIA's output read, our own loop over gloo, a slow pair named, exit statuses."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import rank_programs

from perfscribe import config
from perfscribe.base.cells import Cell
from perfscribe.distributed import nccl_tests, self_test
from perfscribe.distributed.launch import launch
from perfscribe.distributed.nccl_tests import NoFigure
from perfscribe.distributed.self_test import MIB, NO_FIGURE, PASSED, TOO_SLOW
from perfscribe.experiments.fsdp.preflight import levels, measure
from perfscribe.verbs import preflight

ROOT = Path(__file__).resolve().parents[2]

HEAD = """\
# nThread 1 nGpus 1 minBytes 4294967296 maxBytes 4294967296 step: 2(factor) warmup iters: 20 iters: 50 agg iters: 1
#
# Using devices
"""
ROWS = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  4294967296    1073741824     float     sum      -1    19521  220.02  220.02    N/A    19498  220.28  220.28    N/A
"""


def output(bandwidth="220.15", hosts=("node-a", "node-b"), wrong=0) -> str:
    """Output of all_reduce_perf with a rank on each host."""
    rank = "#  Rank {:2} Group  0 Pid   690 on {:>10} device  0 [0x04] NVIDIA\n"
    devices = "".join(rank.format(*place) for place in enumerate(hosts))
    tail = f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}\n# Avg bus bandwidth    : {bandwidth} \n#\n"
    return HEAD + devices + ROWS + tail


def test_the_bandwidth_is_read():
    labelled = "".join(f"node-a.local: {line}\n" for line in output().splitlines())
    # FAILED: by NCCL_TESTS_MIN_BW, which is not our threshold
    for text in (output(), output("220.15 FAILED"), labelled):
        figure = nccl_tests.parse(text, 2)
        assert (figure.busbw_gb_per_s, figure.ranks, figure.hosts) == (220.15, 2, ("node-a", "node-b"))
        assert nccl_tests.largest_size(text) == 2**32


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEAD + "node-a: Test NCCL failure common.cu:1279 'unhandled system error'\n", "unhandled system error"),
        (output("0", ["node-a"]) * 2, "2 runs that knew nothing of each other, of 1 each"),
        (output("0"), "one rank alone"),
        (output(wrong=7), "7 values of its result were wrong"),
    ],
)
def test_no_figure_says_why_in_one_line(text, why):
    with pytest.raises(NoFigure, match=why) as caught:
        nccl_tests.parse(text, 2)
    assert len(str(caught.value).splitlines()) == 1


def cell(**factors) -> Cell:
    """The planned cell of two ranks, some levels replaced."""
    preset = "gpu" if factors.get("backend") == "nccl" else "tiny"
    section = config.resolve({}, preset)["experiments"]["preflight"]
    backend = factors.get("backend", "gloo")
    planned = next(one for one in levels.cells(section) if one["backend"] == backend and one["world_size"] == 2)
    return replace(planned, factors={**planned.factors, **factors})


def test_nvidias_program_is_asked_where_it_is_there_and_gives_no_figure_where_it_fails(tmp_path, monkeypatch):
    program, words = tmp_path / nccl_tests.PROGRAM, tmp_path / "words"
    keep = f'#!/bin/sh\necho "$@" "algorithm=${{NCCL_ALGO-none}}" >{words}\n'
    program.write_text(f"{keep}cat <<END\n{output(hosts=['node-a'] * 2)}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    found = measure.run(cell(backend="nccl", algorithm="Tree"))
    assert words.read_text() == "-b 4294967296 -e 4294967296 -f 2 -g 2 -c 0 -n 50 -w 20 algorithm=Tree\n"
    assert os.environ["NCCL_ALGO"] == "Ring"  # for the test alone
    assert found.values["tested_by"] == "all_reduce_perf" and found.values["exit_code"] == PASSED
    assert found.values["busbw_gb_per_s"] == 220.15 and not found.samples
    assert any("Avg bus bandwidth" in line for line in found.series["log"])
    assert found.values["line"] == (
        "preflight 0: all-reduce of 4096 MiB among 2 ranks on node-a by nccl: busbw 220 GB/s, threshold 5 GB/s"
    )
    program.write_text("#!/bin/sh\necho node-a: Test CUDA failure common.cu:1023 no CUDA-capable device\nexit 2\n")
    with pytest.raises(NoFigure, match=r"ended with 2: .*no CUDA-capable device"):
        measure.run(cell(backend="nccl"))


def test_a_slow_pair_is_named():
    trial = {"size_bytes": MIB, "warmup": 1, "timed": 3, "threshold_gb_per_s": 0.03}
    arguments = {"trial": trial, "slow": [1, 3], "delay_s": 0.1}
    said = launch(rank_programs.over_a_slow_link, arguments, world_size=4, timeout_s=60)
    assert said == [said[0]] * 4  # every rank tells the same
    outcome = self_test.from_json(said[0])
    assert outcome.code == TOO_SLOW and len(outcome.pairs) == 6 and outcome.machines == 1
    assert outcome.slowest.busbw_gb_per_s < 0.02 < sorted(pair.busbw_gb_per_s for pair in outcome.pairs)[1]
    assert re.fullmatch(r".*slowest pair: rank 1 \(.* and rank 3 \(.*", outcome.line())


def test_a_rank_that_does_not_come_is_not_waited_for_for_ever(monkeypatch, capsys):
    monkeypatch.setattr(preflight, "WAIT_S", 1)
    placed = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "0"}
    for name, value in placed.items():
        monkeypatch.setenv(name, value)
    assert preflight.main([]) == NO_FIGURE
    assert capsys.readouterr().err.startswith("preflight 44: no figure: ")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ("--ranks 2 --threshold 0", PASSED, r"preflight 0: all-reduce of \d+ MiB among 2 ranks on .*\n"),
        ("--read nccl.log --threshold 5", TOO_SLOW, "preflight 46: .*4096 MiB among 2 ranks on node-a, node-b.*\n"),
        ("--ranks -1", NO_FIGURE, "preflight 44: no figure: --ranks -1: at least one is needed\n"),
    ],
)
def test_the_program(tmp_path, arguments, status, said):
    (tmp_path / "nccl.log").write_text(output("4.99"))
    command = [sys.executable, str(ROOT / "workflow" / "scripts" / "preflight.py"), *arguments.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    assert re.fullmatch(said, done.stderr if status else done.stdout)
