"""Communication by nsys: exports made by hand and a GPU's own, ranks that take turns, what a machine without says."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import nsys_fixture
import pytest
import real_nsys
from test_communication import NAME, RAW
from workspace import ROOT

from perfscribe import config
from perfscribe.base.cells import Cell, Measurement, Unsupported
from perfscribe.experiments.communication import measure, under_nsys
from perfscribe.instruments.profiling import marked_work, nsys, nsys_export
from perfscribe.instruments.profiling.trace import PUSH_POP
from perfscribe.plan import plan
from perfscribe.plan.fingerprint import Sources

FIXTURES = ROOT / "tests" / "fixtures" / "nsys"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)"
PROCESSES = {("intra", 0): 4100, ("intra", 1): 4200, ("inter", 0): 4300, ("inter", 1): 4400}
TURNS = 2


def cell(backend: str = "nccl", folder: Path | None = None, **changed: Any) -> Cell:
    section = plan.own_section(config.resolve(RAW, "tiny"), NAME) | {"backend": [backend], "tool": ["nsys"]}
    (own,) = [one for one in measure.cells(section | changed) if one["part"] == "placements"]
    return Cell(own.factors, data_folder=str(folder / "data") if folder else "")


# --- exports ----------------------------------------------------------------------------------------------------


def by_hand(path: Path, kernels: bool = True) -> Path:
    """Made by hand: four processes' turns; each has two collectives and a product, rank 1 comes late by 300 ns.

    Turn n's collectives take n + 2 and 3 (rank 1's own), in µs, ten times that across nodes.
    """
    with closing(sqlite3.connect(path)) as connection:
        export = nsys_fixture.Export(connection, "2025.3.1.90")
        begin = 0
        for turn, placement in measure.order_of_turns(TURNS):
            begin += 1_000_000
            for rank in range(2):
                process = PROCESSES[placement, rank]
                main, autograd = nsys_fixture.thread(process, process), nsys_fixture.thread(process, process + 1)
                export.mark(under_nsys.range_name(placement, turn, rank), begin, begin + 500_000, main)
                if not kernels:
                    continue
                early = 300 if rank == 0 else 0
                scale = 10 if placement == "inter" else 1
                export.kernel(NCCL, begin - 900, begin - 500, 99, main)  # of a barrier, before the range
                export.kernel(nsys_fixture.GEMM, begin + 10, begin + 100, 7_000, main)
                export.kernel(NCCL, begin + 20, begin + 10_000 - early, 1000 * scale * (turn + 2) + early, autograd)
                export.kernel(NCCL, begin + 30, begin + 100_000 - early, 3000 * scale + early, autograd)
                export.kernel(nsys_fixture.MUL, begin + 600_000, begin + 600_010, 5, main)  # after the range
        connection.commit()
    return path


def test_a_gpus_own_export_gives_the_work_that_its_ranges_launched() -> None:
    """nsys_export gives work to ranges by its launch: the same, where the device was waited for before a range ends."""
    path = FIXTURES / "gpu-2025.3.1.sqlite"
    trace = nsys_export.read_sqlite(path)
    known = {one.name: one for one in trace.ranges if one.style == PUSH_POP and not one.domain}
    once = [name for name in known if [one.name for one in trace.ranges].count(name) == 1]
    found = marked_work.read(path, once)
    assert found.has_kernels and found.tool == trace.tool and len(once) >= 1
    for name in once:
        span = known[name]
        within = [one for one in trace.kernels if span.start_ns <= one.start_ns < span.end_ns]
        assert [one.duration_ns for one in found.work[name]] == [one.duration_ns for one in within]
    assert any(found.work.values())


def test_what_lacks_a_range_or_is_no_export_is_refused(tmp_path: Path) -> None:
    path = by_hand(tmp_path / "by_hand.sqlite")
    (tmp_path / "text").write_text("no database")
    for export, names, text in (
        (FIXTURES / "synthetic.sqlite", ["step"], r"^nsys 2023\.4\.4: the range 'step' was marked more than once$"),
        (path, ["intra turn 0 rank 0", "other"], r"^nsys 2025\.3\.1: the range 'other' is missing, of 2$"),
        (path, ["other"], r"^the trace of nsys 2025\.3\.1 holds no range .* nvtx package is missing"),
        (tmp_path / "text", ["one"], "no SQLite export of nsys"),
    ):
        with pytest.raises(ValueError, match=text):
            marked_work.read(export, names)


def test_an_edit_of_what_runs_under_nsys_measures_again() -> None:
    sources = Sources(ROOT)
    assert under_nsys.__name__ == under_nsys.MODULE and under_nsys.MODULE in sources.closure(measure.__name__)
    assert "nvtx" in sources.libraries(measure.__name__)


# --- a cell, with an nsys that gives such an export --------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An nsys whose report holds kernels or not, around a program that answers this."""
    said = {"step_ms": [4.0, 6.0], "gradient_bytes": 400, "link": {"link": "not told"}}
    turns = {name: [[said, said] for _ in range(TURNS + 1)] for name in measure.PLACEMENTS}
    acts: dict[str, Any] = {"kernels": True, "answer": {"turns": turns}, "profile": None}

    def profile(_: Any, command: list[str], output: Path, *__: Any, **options: Any) -> Path:
        assert options == {"fork_before_exec": True}
        assert json.loads(Path(command[-2]).read_text())["factors"]["tool"] == "nsys"
        Path(command[-1]).write_text(json.dumps(acts["answer"]))
        if acts["profile"]:
            raise acts["profile"]
        return output

    monkeypatch.setattr(nsys, "find", lambda: nsys.Nsys(Path("nsys"), "2025.3.1"))
    monkeypatch.setattr(nsys, "profile", profile)
    monkeypatch.setattr(nsys, "export_sqlite", lambda _, __, output: by_hand(output, acts["kernels"]))
    return acts


def run(folder: Path, backend: str = "nccl") -> Measurement:
    return measure.run(cell(backend, folder, turns=TURNS))


def test_an_export_becomes_the_rows_of_the_torch_profiler(tmp_path: Path, pretended: dict[str, Any]) -> None:
    found = run(tmp_path)
    assert found.samples["intra_transfer_ms"] == pytest.approx([0.005, 0.006])
    assert found.samples["inter_transfer_ms"] == pytest.approx([0.05, 0.06])
    assert found.samples["intra_rank0_total_ms"] == pytest.approx([0.0056, 0.0066])
    assert found.samples["intra_rank0_wait_ms"] == pytest.approx([0.0006, 0.0006])
    assert found.samples["intra_rank1_wait_ms"] == pytest.approx([0, 0])
    assert found.samples["intra_rank1_compute_ms"] == pytest.approx([0.007, 0.007])
    assert found.samples["intra_rank1_step_ms"] == [5, 5]
    assert found.warmup["intra_transfer_ms"] == pytest.approx([0.004])
    assert found.series["intra_calls"] == found.series["inter_calls"] == [2, 2]
    assert found.timers["intra_transfer_ms"] == "nsys 2025.3.1, GPU time stamps"
    assert found.timers["intra_rank0_step_ms"] == "host clock"
    assert os.listdir(tmp_path / "nsys") == []  # the report alone stays, which this nsys does not write


def test_what_nsys_cannot_see_is_unsupported(tmp_path: Path, pretended: dict[str, Any]) -> None:
    pretended["kernels"] = False
    with pytest.raises(Unsupported, match=r"\(12, median 0\.5 ms\), but no kernel: it is too old for"):
        run(tmp_path)
    with pytest.raises(Unsupported, match="but nothing of gloo: its collectives run on the CPU"):
        run(tmp_path, "gloo")


def test_an_nsys_that_fails_or_is_not_there_is_unsupported_and_a_rank_that_fails_is_not(
    tmp_path: Path, pretended: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended |= {"profile": nsys.NsysError("nsys profile: longer than 480 s"), "answer": {}}
    with pytest.raises(Unsupported, match=r"^nsys profile: longer than 480 s$"):
        run(tmp_path)
    pretended["answer"] = {"error": "RuntimeError: intra, rank 1: ValueError: no"}
    with pytest.raises(RuntimeError, match=r"^RuntimeError: intra, rank 1: ValueError: no$"):
        run(tmp_path)
    assert os.listdir(tmp_path / "nsys") == []
    monkeypatch.setattr(nsys, "find", lambda: None)
    with pytest.raises(Unsupported, match=r"^nsys was not found$"):
        run(tmp_path)


# --- ranks that run ---------------------------------------------------------------------------------------------


def request(**changed: Any) -> dict[str, Any]:
    return {"factors": {**cell("gloo").factors, **changed}, "seed": 1}


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.usefixtures("importable")
def test_a_rank_that_fails_is_named(tmp_path: Path) -> None:
    asked, answer = tmp_path / "request.json", tmp_path / "answer.json"
    asked.write_text(json.dumps(request(features=12)))
    with pytest.raises(RuntimeError, match=r"^(intra|inter), rank [01]: ValueError: heads must divide d_model: 8 does"):
        under_nsys.answer_request(str(asked), str(answer))
    assert "ValueError: heads must divide d_model" in json.loads(answer.read_text())["error"]


def test_real_nsys_sees_the_ranks_ranges_and_nothing_of_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_nsys.provide(monkeypatch)
    with pytest.raises(Unsupported, match=r"^nsys [\d.]+ sees the ranges .* \(12, .*\), but nothing of gloo"):
        run(tmp_path, "gloo")
    assert os.listdir(tmp_path / "nsys") == ["communication-gloo.nsys-rep"]
