"""torch_compile: its cells, small ones that really run, and its tables and figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from workspace import ROOT

from perfscribe import config
from perfscribe.base.cells import Cell
from perfscribe.data import tokens
from perfscribe.experiments.torch_compile import measure, pairs, show
from perfscribe.models import training_step
from perfscribe.plan import plan
from perfscribe.records import environment
from perfscribe.records.records import Record
from perfscribe.run import child

RAW = config.load(ROOT / "config.yaml")
TURNS, PASSES = 6, 2
ATTENTION = {"device": "cpu", "backend": "aot_eager", "dtype": "fp32", "head_dim": 8, "seq_len": 16, "batch": 2}
MODEL = {"device": "cpu", "backend": "aot_eager", "dtype": "fp32", "size": "nano", "seq_len": 8, "batch": 2}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.set_num_threads(1)  # with more, threads wait for each other where other tests run
    child.reset_state(0)
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("data")
    file = folder / tokens.dataset_name(2, 8) / tokens.FILE
    file.parent.mkdir()
    np.save(file, tokens.arrays(16, 9, 10_000, 0)["tokens"])
    return str(folder)


def cell(problem: str, data_folder: str = "", **levels: Any) -> Cell:
    base: dict[str, Any] = dict(ATTENTION if problem == "attention" else MODEL)
    base |= {"problem": problem, "implementation": "compiled", "turns": 2, "warmup_passes": 1, "passes": 2}
    return Cell(base | levels, data_folder=data_folder)


# --- cells ------------------------------------------------------------------------------------------------------


def test_the_gpu_preset_is_the_homeworks_grid() -> None:
    cells = plan.planned_cells(RAW, "torch_compile", "gpu")
    shapes = {(c["seq_len"], c["head_dim"]) for c in cells if c["problem"] == "attention"}
    assert shapes == {(n, d) for n in (256, 1024, 4096, 8192, 16384) for d in (16, 32, 64, 128)}
    models = [(c["size"], c["seq_len"], c["dtype"]) for c in cells if c["problem"] == "model"]
    assert models == [(size, 512, "fp32") for size in ("small", "medium", "large", "xl", "2.7B")]
    assert all({"cuda", "triton", "c_compiler"} <= set(c.requires) for c in cells)


def test_the_cpu_preset_has_cells_with_and_without_a_compiler() -> None:
    cells = [c for c in plan.planned_cells(RAW, "torch_compile", "cpu") if not c.skip]
    assert all(c.requires == (("compiler",) if c["backend"] == "inductor" else ()) for c in cells)
    assert {c["backend"] for c in cells} == {"aot_eager", "inductor"}
    assert {c["problem"] for c in cells if not c.requires} == {"attention", "model"}


def test_a_machine_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(environment, "_has_python_headers", lambda: True)
    assert environment.missing(["compiler"]) == "no C++ compiler"
    (tmp_path / "mine").touch(mode=0o755)
    monkeypatch.setenv("CXX", "mine")
    monkeypatch.setenv("CC", "missing")
    assert environment.missing(["compiler"]) is None and environment.missing(["c_compiler"]) == "no C compiler"


# --- cells that run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "phases"),
    [("attention", ("forward", "backward", "both")), ("model", ("forward", "backward", "optimizer", "full_step"))],
)
def test_a_cell_runs_both_ways(problem: str, phases: tuple[str, ...], data_folder: str) -> None:
    found = measure.run(cell(problem, data_folder))
    assert set(found.samples) == {f"{v}_{phase}_ms" for v in ("eager", "compiled", "eager_again") for phase in phases}
    assert {len(samples) for samples in found.samples.values()} == {4} and set(found.timers.values()) == {"host clock"}
    assert {len(samples) for samples in found.warmup.values()} == {2}
    assert len(found.series["first_passes_ms"]) == 3
    assert found.compile_s == pytest.approx(sum(found.series["first_passes_ms"]) / 1e3)
    assert found.values["graphs"] == 1 and found.values["graph_breaks"] == found.values["recompiles"] == 0
    assert max(v for name, v in found.values.items() if name.endswith("_error")) < 1e-3
    assert found.values["peak_eager_bytes"] > 0 and found.values["peak_compiled_bytes"] > 0
    child.check(found)


def test_float64_attention_is_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, d_out = (torch.randn(2, 10, 4) for _ in range(4))
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    out = torch.softmax(wide[0] @ wide[1].mT / 2.0, dim=-1) @ wide[2]
    expected = (out, *torch.autograd.grad(out, wide, d_out.double()))
    monkeypatch.setattr(pairs, "ROWS_AT_ONCE", 3)
    for found, right in zip(pairs.float64_first_sequence((q, k, v, d_out)).values(), expected, strict=True):
        torch.testing.assert_close(found, right[0].detach())


@pytest.mark.parametrize("part", ["output", "dk"])
def test_wrong_attention_is_refused_before_it_is_timed(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = pairs.scaled_dot_product_attention(q, k.detach() + 0 * k if part == "dk" else k, v)
        return out + 0.001 * out.detach() if part == "output" else out

    monkeypatch.setattr(pairs, "compiled", lambda *_: wrong)
    with pytest.raises(ValueError, match=f"compiled: {part} is off by .* against float64") as caught:
        measure.run(cell("attention"))
    kept = caught.value.partial_measurement  # type: ignore[attr-defined]
    assert "peak_eager_bytes" in kept.values and not kept.samples


@pytest.mark.parametrize(("wrong", "what"), [("loss", "the loss"), ("gradient", "a gradient")])
def test_a_wrong_model_is_refused(data_folder: str, wrong: str, what: str) -> None:
    step = training_step.build(cell("model").factors, data_folder)

    class Other(torch.nn.Module):
        def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
            logits = step.model(token_ids)
            # 0.5: the same figures, half the gradient
            return logits * 1.01 if wrong == "loss" else logits.detach() + 0.5 * (logits - logits.detach())

    other = training_step.Step(step.model, torch.cat([step.inputs, step.targets[:, -1:]], dim=1), "cpu", "fp32")
    other.model = Other()  # type: ignore[assignment]
    with pytest.raises(ValueError, match=f"compiled: {what} is off"):
        pairs.compare(step, other)


# --- tables of records made by hand -----------------------------------------------------------------------------


def samples(eager: Mapping[str, float], gain: float, stray: float) -> dict[str, list[list[float]]]:
    """Twelve samples a phase; turn by turn they rise by a percent, for all variants alike."""
    found = {}
    for variant, factor in (("eager", 1.0), ("compiled", 1 / gain), ("eager_again", 1 + stray)):
        for phase, ms in eager.items():
            at_first = ms if phase == "optimizer" else ms * factor
            found[f"{variant}_{phase}_ms"] = [[at_first * (1 + 0.01 * (n // PASSES)) for n in range(TURNS * PASSES)]]
    return found


def record(problem: str, gain: float, stray: float = 0.0, **levels: Any) -> Record:
    """A cell whose compiled forward, backward and whole pass take 1 / gain of eager's 10, 20 and 30 or 40 ms."""
    base = ATTENTION if problem == "attention" else MODEL
    factors = {"problem": problem, "implementation": "compiled", **base, "turns": TURNS, "passes": PASSES, **levels}
    whole = {"both": 30.0} if problem == "attention" else {"optimizer": 10.0, "full_step": 40.0}
    timed = samples({"forward": 10.0, "backward": 20.0, **whole}, gain, stray)
    on_gpu = factors["device"] == "cuda"
    values: dict[str, Any] = {"graphs": 1, "graph_breaks": 0, "recompiles": 0, "compiler_start_s": 2.0}
    values |= {"peak_eager_bytes": 2**30, "peak_compiled_bytes": 2**29}
    values["memory_counter"] = "CUDA caching allocator" if on_gpu else "CPU allocator, by torch's profiler"
    if on_gpu:
        values |= {"peak_eager_reserved_bytes": 2**31, "peak_compiled_reserved_bytes": 2**30}
    steady = max(whole.values()) / gain * 1.025  # the median of turns that rise by a percent each
    series = {"first_passes_ms": [5000.0 + steady, 1000.0 + steady, steady]}
    timers = dict.fromkeys(timed, "host clock")
    return Record("torch_compile", factors, "ok", "", "measured", timed, {}, values, series, timers)


def rows(name: str, *cells: Record) -> list[dict[str, Any]]:
    by_id = {table.id: table for table in show.tables({"torch_compile": list(cells)})}
    found: list[dict[str, Any]] = by_id[f"cs336.{name}"].frame.to_dict("records")
    return found


def test_speedup_is_eager_over_compiled_turn_by_turn() -> None:
    quick, slow = rows("compiled_attention_speedup", record("attention", 1.25), record("attention", 0.8))
    assert quick["forward_speedup"] == pytest.approx(1.25) and quick["forward_verdict"] == "faster"
    assert quick["forward_low"] == pytest.approx(1.25) == pytest.approx(quick["forward_high"])  # the drift cancels
    assert quick["turns"] == 6 and quick["compiled_forward_ms_n"] == 12
    assert slow["both_speedup"] == pytest.approx(0.8) and slow["both_verdict"] == "slower"


def test_an_effect_below_that_of_eager_against_itself_cannot_be_told() -> None:
    (row,) = rows("compiled_attention_speedup", record("attention", 1.02, stray=0.05))
    assert row["forward_verdict"] == "cannot tell" and row["both_self_percent"] == pytest.approx(5, abs=0.5)


def test_too_few_turns_give_no_interval() -> None:
    short = record("attention", 1.25, turns=4)
    short.samples = {name: [rounds[0][:8]] for name, rounds in short.samples.items()}
    (row,) = rows("compiled_attention_speedup", short)
    assert row["forward_interval"] == row["both_self_percent"] == "too few turns"
    assert row["forward_speedup"] == pytest.approx(1.25) and row["forward_verdict"] == "cannot tell"


def test_rounds_of_several_processes_are_more_turns() -> None:
    twice = record("attention", 1.25)
    twice.samples = {name: [rounds[0], rounds[0]] for name, rounds in twice.samples.items()}
    assert show.of_phase(twice, "forward").rounds == 12


def test_what_compiling_costs() -> None:
    graphed = record("attention", 2.0, device="cuda", implementation="cuda_graphs")
    on_gpu, quick, slow = rows("compile_cost", record("model", 2.0), record("model", 0.5, size="micro"), graphed)
    assert quick["compile_s"] == pytest.approx(6.0) and quick["pays_after"] == pytest.approx(6000 / (41 - 20.5))
    assert slow["pays_after"] == "never here" and quick["compiled"] == "model nano"
    assert quick["peak_eager_gib"] == 1 and quick["reserved_eager_gib"] == "no caching allocator"
    assert on_gpu["peak_compiled_gib"] == "in the graphs' pool" and on_gpu["reserved_compiled_gib"] == 1


def test_published_times_stand_beside_the_same_levels() -> None:
    on_gpu = {"device": "cuda", "backend": "inductor"}
    shape = {"seq_len": 4096, "head_dim": 128, "batch": 8}
    plain, graphed = rows(
        "compiled_attention",
        record("attention", 1.5, **shape, **on_gpu),
        record("attention", 1.5, implementation="cuda_graphs", **shape, **on_gpu),
    )
    assert plain["eager_forward_ms_cs336-writeup-002"] == 3.85454
    assert plain["compiled_forward_ms_cs336-writeup-002"] == 3.81454
    assert graphed["eager_forward_ms_cs336-writeup-002"] == "none"
    medium, xl = rows(
        "compiled_models",
        record("model", 1.3, size="medium", seq_len=1024, batch=4, **on_gpu),
        record("model", 1.3, size="xl", seq_len=512, batch=4, dtype="tf32", **on_gpu),
    )
    assert medium["compiled_full_step_ms_brandon-snider"] == 299.44
    assert xl["compiled_full_step_ms_yyin-dev"] == pytest.approx(283.5)
    assert xl["eager_full_step_ms_yyin-dev"] == "none"


def test_the_figures_points_carry_their_intervals() -> None:
    cells = [record("attention", 0.5 + n / 64, seq_len=n) for n in (16, 32, 64)]
    cells += [record("model", gain, size=size) for size, gain in (("nano", 2.0), ("micro", 1.5), ("mini", 1.2))]
    tables = {table.id: table for table in show.tables({"torch_compile": cells})}
    frame = tables["cs336.compiled_attention_speedup"].frame
    frame.loc[2, ["forward_low", "forward_high", "backward_low"]] = [1.2, 1.9, "too few turns"]
    above, below = plt.figure(), plt.figure()
    show.draw_attention(above, frame)
    show.draw_models(below, tables["cs336.compiled_models_speedup"].ok)
    (points,) = above.axes[0].containers
    assert list(points[0].get_ydata()) == pytest.approx([0.75, 1.0, 1.5])
    bar = points[2][0].get_segments()[2]
    assert [bar[0][1], bar[1][1]] == pytest.approx([1.2, 1.9])
    assert [tick.get_text() for tick in below.axes[0].get_xticklabels()] == ["nano", "micro", "mini"]
    assert list(below.axes[0].containers[0][0].get_ydata()) == pytest.approx([2.0, 1.5, 1.2])
    plt.close("all")
