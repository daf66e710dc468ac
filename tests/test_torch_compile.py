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
from perfscribe.experiments.torch_compile import attention_pair, drawings, measure, model_pair, rows, show
from perfscribe.models import training_step
from perfscribe.plan import plan
from perfscribe.records import environment
from perfscribe.records.records import Record
from perfscribe.run import child
from perfscribe.show.tables import Table

RAW = config.load(ROOT / "config.yaml")
TURNS, PASSES = 6, 2
ATTENTION = {"device": "cpu", "backend": "aot_eager", "dtype": "fp32", "head_dim": 8, "seq_len": 16, "batch": 2}
MODEL = {"device": "cpu", "backend": "aot_eager", "dtype": "fp32", "size": "nano", "seq_len": 8, "batch": 2}
COUNTED = {"turns": 2, "warmup_passes": 1, "passes": 2}


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
    base = ATTENTION if problem == "attention" else MODEL
    factors = {"problem": problem, "implementation": "compiled", **base, **COUNTED, **levels}
    return Cell(factors, data_folder=data_folder)


# --- cells ------------------------------------------------------------------------------------------------------


def planned(preset: str) -> list[Cell]:
    return [one for one in plan.planned_cells(RAW, "torch_compile", preset) if not one.skip]


def test_the_gpu_preset_is_the_homeworks_grid() -> None:
    cells = planned("gpu")
    shapes = {
        (c["seq_len"], c["head_dim"])
        for c in cells
        if c["problem"] == "attention" and c["implementation"] == "compiled"
    }
    assert shapes == {(n, d) for n in (256, 1024, 4096, 8192, 16384) for d in (16, 32, 64, 128)}
    models = [
        (c["size"], c["seq_len"], c["dtype"])
        for c in cells
        if c["problem"] == "model" and c["implementation"] == "compiled"
    ]
    assert {size for size, *_ in models} == {"small", "medium", "large", "xl", "2.7B"} and (
        "medium",
        1024,
        "fp32",
    ) in models
    graphed = [c for c in cells if c["implementation"] == "cuda_graphs"]
    assert {c["problem"] for c in graphed} == {"attention", "model"} and {c["backend"] for c in graphed} == {"inductor"}
    assert all({"cuda", "triton", "c_compiler"} <= set(c.requires) for c in cells)
    assert all(("tf32" in c.requires) == (c["dtype"] == "tf32") for c in cells)


@pytest.mark.parametrize("preset", ["tiny", "cpu"])
def test_three_cells_of_each_problem_need_no_compiler(preset: str) -> None:
    cells = planned(preset)
    for problem in ("attention", "model"):
        assert sum(c["problem"] == problem and not c.requires for c in cells) >= 3
    assert all(c.requires == (("compiler",) if c["backend"] == "inductor" else ()) for c in cells)
    assert not any(c["implementation"] == "cuda_graphs" for c in cells)
    assert {c["backend"] for c in cells} == {"aot_eager", "inductor"} if preset == "cpu" else {"aot_eager"}


def test_a_machine_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(environment, "_has_python_headers", lambda: True)
    assert (
        environment.missing(["compiler"]) == "no C++ compiler"
        and environment.missing(["c_compiler"]) == "no C compiler"
    )
    (tmp_path / "mine").touch(mode=0o755)
    monkeypatch.setenv("CXX", "mine")
    monkeypatch.setenv("CC", "missing")
    assert environment.missing(["compiler"]) is None and environment.missing(["c_compiler"]) == "no C compiler"


def test_the_same_model_is_not_asked_for_twice() -> None:
    section = plan.own_section(config.resolve(RAW, "cpu"), "torch_compile")
    section["model"] = {**section["model"], "backend": ["inductor"], "size": ["nano"], "seq_len": [64]}
    assert sum(c["problem"] == "model" for c in measure.cells(section)) == 1
    assert set(measure.datasets(section)) == {tokens.dataset_name(4, 64)}


# --- cells that run ---------------------------------------------------------------------------------------------


def test_attention_runs_both_ways() -> None:
    found = measure.run(cell("attention"))
    names = {
        f"{variant}_{phase}_ms"
        for variant in ("eager", "compiled", "eager_again")
        for phase in ("forward", "backward", "both")
    }
    assert set(found.samples) == names and {len(samples) for samples in found.samples.values()} == {4}
    assert {len(samples) for samples in found.warmup.values()} == {2} and set(found.timers.values()) == {"host clock"}
    assert len(found.series["first_passes_ms"]) == measure.FIRST_PASSES
    assert found.compile_s == pytest.approx(sum(found.series["first_passes_ms"]) / 1e3)
    assert found.values["graphs"] == 1 and found.values["graph_breaks"] == found.values["recompiles"] == 0
    assert max(v for name, v in found.values.items() if name.endswith("_error")) < 1e-5
    assert found.values["peak_eager_bytes"] > 0 and found.values["peak_compiled_bytes"] > 0
    child.check(found)


@pytest.mark.parametrize(
    ("pass_ms", "asked", "taken"), [(0.3, 13, 13), (20, 13, 5), (75, 13, 3), (900, 13, 3), (900, 2, 2)]
)
def test_long_passes_are_fewer(pass_ms: float, asked: int, taken: int) -> None:
    assert measure.passes_within(pass_ms, asked) == taken


def test_a_model_runs_both_ways(data_folder: str) -> None:
    found = measure.run(cell("model", data_folder))
    phases = ("forward", "backward", "optimizer", "full_step")
    assert set(found.samples) == {f"{v}_{phase}_ms" for v in ("eager", "compiled", "eager_again") for phase in phases}
    assert found.values["compiled_loss_error"] < 1e-5 and found.values["compiled_gradient_error"] < 1e-3
    assert found.values["graphs"] == 1 and child.compiler_complaint(found.values) == ""
    child.check(found)


def test_float64_attention_is_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = attention_pair.Operands(*(torch.randn(2, 10, 4, requires_grad=True) for _ in range(4)))
    q, k, v = (x.detach().double().requires_grad_() for x in (operands.q, operands.k, operands.v))
    out = torch.softmax(q @ k.mT / 2.0, dim=-1) @ v
    out.backward(operands.d_out.double())
    monkeypatch.setattr(attention_pair, "ROWS_AT_ONCE", 3)
    found = attention_pair.float64_first_sequence(operands)
    for name, expected in (("output", out), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad)):
        assert expected is not None
        torch.testing.assert_close(found[name], expected[0].detach())


@pytest.mark.parametrize("part", ["output", "dk"])
def test_wrong_attention_is_refused_before_it_is_timed(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = attention_pair.scaled_dot_product_attention(q, k.detach() + 0 * k if part == "dk" else k, v)
        return out + 0.001 * out.detach() if part == "output" else out

    monkeypatch.setattr(attention_pair, "as_implemented", lambda *_: wrong)
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
            if wrong == "loss":
                return logits * 1.01
            return logits.detach() + 0.5 * (logits - logits.detach())  # the same figures, half the gradient

    other = training_step.Step(step.model, torch.cat([step.inputs, step.targets[:, -1:]], dim=1), "cpu", "fp32")
    other.model = Other()  # type: ignore[assignment]
    with pytest.raises(ValueError, match=f"compiled: {what} is off"):
        model_pair.compare(step, other)


def test_parts_without_cuda_graphs_fail_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_pair, "as_implemented", lambda function, *_: function)
    monkeypatch.setattr("perfscribe.instruments.compiling.counts", lambda: {"skipped_graphs": 2})
    with pytest.raises(RuntimeError, match="2 parts ran without CUDA graphs"):
        measure.run(cell("attention", implementation="cuda_graphs"))
    assert measure.run(cell("attention")).values["skipped_graphs"] == 2


# --- records made by hand ---------------------------------------------------------------------------------------


def samples(
    eager: Mapping[str, float], compiled: Mapping[str, float], stray: float = 0.0
) -> dict[str, list[list[float]]]:
    """Twelve samples a phase; turn by turn they rise by a percent, for all variants alike."""
    found = {}
    for variant, times in (("eager", eager), ("compiled", compiled), ("eager_again", eager)):
        for phase, time in times.items():
            drift = [1 + 0.01 * turn for turn in range(TURNS)]
            off = 1 + stray if variant == "eager_again" else 1.0
            turns = [[time * d * off] * PASSES for d in drift]
            found[f"{variant}_{phase}_ms"] = [[sample for turn in turns for sample in turn]]
    return found


def record(problem: str, gain: float, status: str = "ok", **levels: Any) -> Record:
    """A cell whose compiled forward, backward and whole pass take 1 / gain of eager's 10, 20 and 30 or 40 ms."""
    base = ATTENTION if problem == "attention" else MODEL
    factors = {"problem": problem, "implementation": "compiled", **base, "turns": TURNS, "passes": PASSES, **levels}
    whole = {"both": 30.0} if problem == "attention" else {"optimizer": 10.0, "full_step": 40.0}
    eager = {"forward": 10.0, "backward": 20.0, **whole}
    compiled = {name: time if name == "optimizer" else time / gain for name, time in eager.items()}
    if status != "ok":
        return Record("torch_compile", factors, status, "why", "measured", values={"before_start": True})
    counter = "CUDA caching allocator" if factors["device"] == "cuda" else "CPU allocator, by torch's profiler"
    values: dict[str, Any] = {"graphs": 1, "graph_breaks": 0, "recompiles": 0, "compiler_start_s": 2.0}
    values |= {"peak_eager_bytes": 2**30, "peak_compiled_bytes": 2**29, "memory_counter": counter}
    if factors["device"] == "cuda":
        values |= {"peak_eager_reserved_bytes": 2**31, "peak_compiled_reserved_bytes": 2**30}
    steady = compiled[rows.WHOLE[problem]] * 1.025  # the median of turns that rise by a percent each
    series = {"first_passes_ms": [5000.0 + steady, 1000.0 + steady, steady]}
    timed = samples(eager, compiled)
    timers = dict.fromkeys(timed, "host clock")
    return Record("torch_compile", factors, "ok", "", "measured", timed, {}, values, series, timers)


def grid() -> list[Record]:
    attention = [record("attention", 0.5 + n / 64, seq_len=n) for n in (16, 32, 64)]
    models = [record("model", gain, size=size) for size, gain in (("nano", 2.0), ("micro", 1.5), ("mini", 1.2))]
    return [*attention, *models]


def shown(cells: list[Record]) -> dict[str, Table]:
    return {table.id.removeprefix("cs336."): table for table in show.tables({"torch_compile": cells})}


# --- ratios -----------------------------------------------------------------------------------------------------


def test_speedup_is_eager_over_compiled_turn_by_turn() -> None:
    table = shown([record("attention", 1.25)])["compiled_attention_speedup"]
    (row,) = table.frame.to_dict("records")
    assert row["forward_speedup"] == pytest.approx(1.25) and row["forward_verdict"] == "faster"
    assert row["forward_low"] == pytest.approx(1.25) == pytest.approx(row["forward_high"])  # the drift cancels
    assert row["turns"] == 6 and row["compiled_forward_ms_n"] == 12
    (slow,) = shown([record("attention", 0.8)])["compiled_attention_speedup"].frame.to_dict("records")
    assert slow["both_speedup"] == pytest.approx(0.8) and slow["both_verdict"] == "slower"


def test_an_effect_below_that_of_eager_against_itself_cannot_be_told() -> None:
    noisy = record("attention", 1.02)
    eager, compiled = (
        {"forward": 10.0, "backward": 20.0, "both": 30.0},
        {"forward": 9.8, "backward": 19.6, "both": 29.4},
    )
    noisy.samples = samples(eager, compiled, stray=0.05)
    (row,) = shown([noisy])["compiled_attention_speedup"].frame.to_dict("records")
    assert row["forward_verdict"] == "cannot tell" and row["both_self_percent"] == pytest.approx(5, abs=0.5)


@pytest.mark.parametrize("problem", ["attention", "model"])
def test_each_verdict_stands_behind_what_its_own_pass_must_exceed(problem: str) -> None:
    name = {"attention": "compiled_attention_speedup", "model": "compiled_models_speedup"}[problem]
    table = shown([record(problem, 1.25)])[name]
    names = [column.name for column in table.columns if column.kind == "figure"]
    for phase in rows.PHASES[problem]:
        place = names.index(f"{phase}_verdict")
        assert names[place - 2 : place] == [f"{phase}_interval", f"{phase}_self_percent"]


def test_too_few_turns_give_no_interval() -> None:
    short = record("attention", 1.25, turns=4)
    short.samples = {name: [rounds[0][:8]] for name, rounds in short.samples.items()}
    (row,) = shown([short])["compiled_attention_speedup"].frame.to_dict("records")
    assert row["forward_interval"] == row["both_self_percent"] == rows.TOO_FEW_TURNS
    assert (
        row["forward_speedup"] == pytest.approx(1.25) and row["forward_verdict"] == "cannot tell" and row["turns"] == 4
    )


def test_rounds_of_several_processes_are_more_turns() -> None:
    twice = record("attention", 1.25)
    twice.samples = {name: [rounds[0], rounds[0]] for name, rounds in twice.samples.items()}
    assert rows.of_phase(twice, "forward").rounds == 12


def test_what_compiling_costs() -> None:
    rows = shown([record("model", 2.0), record("model", 0.5, size="micro")])["compile_cost"].frame.to_dict("records")
    assert rows[0]["compile_s"] == pytest.approx(6.0) and rows[0]["pays_after"] == pytest.approx(6000 / (41 - 20.5))
    assert rows[1]["pays_after"] == "never here" and rows[0]["compiled"] == "model nano"
    assert rows[0]["peak_eager_gib"] == 1 and rows[0]["reserved_eager_gib"] == "no caching allocator"


def test_memory_of_cuda_graphs_is_what_is_reserved() -> None:
    graphed = record("attention", 2.0, device="cuda", implementation="cuda_graphs")
    (row,) = shown([graphed])["compile_cost"].frame.to_dict("records")
    assert row["peak_compiled_gib"] == "in the graphs' pool" and row["reserved_compiled_gib"] == 1
    (times,) = shown([graphed])["compiled_attention"].frame.to_dict("records")
    assert times["eager_forward_ms_cs336-writeup-002"] == "none"


# --- tables ---------------------------------------------------------------------------------------------


def test_no_cell_ran_and_rows_are_folded(tmp_path: Path) -> None:
    from perfscribe.show import markdown_tables, tables

    lacking = [record("attention", 1, "unsupported", device="cuda", implementation=i, seq_len=n)
               for i in ("compiled", "cuda_graphs") for n in (256, 512, 1024)]  # fmt: skip
    for name, table in shown([*grid(), *lacking]).items():
        tables.write(table, tmp_path)
        text = markdown_tables.to_markdown(tmp_path, table.id)
        lines = [line for line in text.splitlines() if line.startswith("|") and "unsupported" in line]
        assert len(lines) == ("model" not in name), name


def test_columns_are_those_of_the_write_up() -> None:
    tables = shown(grid())
    attention, models = (list(tables[name].frame.columns) for name in ("compiled_attention", "compiled_models"))
    figures = [name for name in attention if name.endswith("_ms")]
    phases = ("eager_forward", "eager_backward", "compiled_forward", "compiled_backward")
    assert figures == [f"{phase}_ms" for phase in phases] and attention[:2] == ["seq_len", "head_dim"]
    assert [name for name in models if name.endswith("_ms")][:4] == [
        "eager_forward_ms",
        "compiled_forward_ms",
        "eager_full_step_ms",
        "compiled_full_step_ms",
    ]


def present_tables(cells: list[Record]) -> dict[str, Table]:
    return {table.id: table for table in show.tables({"torch_compile": cells})}


def test_published_times_stand_beside_the_same_levels() -> None:
    cells = [record("attention", 1.5, seq_len=4096, head_dim=128, batch=8, device="cuda", backend="inductor")]
    cells += [record("model", 1.3, size="medium", seq_len=1024, batch=4, device="cuda", backend="inductor")]
    cells += [record("model", 1.3, size="xl", seq_len=512, batch=4, dtype="tf32", device="cuda", backend="inductor")]
    tables = shown(cells)
    (row,) = tables["compiled_attention"].frame.to_dict("records")
    assert (
        row["eager_forward_ms_cs336-writeup-002"] == 3.85454 and row["compiled_forward_ms_cs336-writeup-002"] == 3.81454
    )
    assert row["compiled_backward_ms_yyin-dev"] == pytest.approx(5.002)
    medium, xl = tables["compiled_models"].frame.to_dict("records")
    assert (
        medium["compiled_full_step_ms_brandon-snider"] == 299.44
        and medium["eager_forward_ms_cs336-writeup-002"] == 86.88
    )
    assert xl["compiled_full_step_ms_yyin-dev"] == pytest.approx(283.5) and xl["eager_full_step_ms_yyin-dev"] == "none"


# --- figures -----------------------------------------------------------------------------------------------------


def test_points_carry_their_intervals() -> None:
    tables = present_tables(grid())
    canvas = plt.figure()
    drawings.attention(canvas, tables["cs336.compiled_attention_speedup"].frame)
    (line,) = canvas.axes[0].containers
    assert list(line[0].get_ydata()) == pytest.approx([0.75, 1.0, 1.5]) and canvas.axes[0].get_yscale() == "log"
    plt.close(canvas)
    row = (
        tables["cs336.compiled_attention_speedup"]
        .frame.iloc[[2]]
        .assign(forward_low=1.2, forward_high=1.9, backward_low="too few turns")
    )
    canvas = plt.figure()
    drawings.attention(canvas, row)
    (bar,) = canvas.axes[0].containers[0][2][0].get_segments()
    assert [bar[0][1], bar[1][1]] == pytest.approx([1.2, 1.9])
    plt.close(canvas)


def test_models_are_drawn_side_by_side() -> None:
    canvas = plt.figure()
    drawings.models(canvas, present_tables(grid())["cs336.compiled_models_speedup"].ok)
    forward = canvas.axes[0]
    assert [tick.get_text() for tick in forward.get_xticklabels()] == ["nano", "micro", "mini"]
    assert list(forward.containers[0][0].get_ydata()) == pytest.approx([2.0, 1.5, 1.2])
    plt.close(canvas)
