"""Cold compilation and what it did; variants timed interleaved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from perfscribe.instruments import compiling, interleaving
from perfscribe.instruments.interleaving import split, time_interleaved
from perfscribe.instruments.timing import Mark


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Nothing compiled before or after."""
    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def with_a_break(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return 2 * x


# --- compiling --------------------------------------------------------------------------------------------------


def test_a_function_is_compiled_when_it_is_first_called() -> None:
    call = compiling.as_implemented(double, "aot_eager", "compiled")
    assert compiling.counts()["graphs"] == 0
    assert torch.equal(call(torch.ones(3)), torch.full((3,), 2.0))
    call(torch.ones(3))
    assert compiling.counts() == {"graphs": 1, "graph_breaks": 0, "recompiles": 0, "skipped_graphs": 0}


def test_another_shape_is_a_recompilation() -> None:
    call = compiling.as_implemented(double, "aot_eager", "compiled")
    for length in (3, 4, 5):
        call(torch.ones(length))
    assert compiling.counts()["recompiles"] == 2 and compiling.counts()["graphs"] == 3


def test_graph_breaks_are_counted() -> None:
    call = compiling.as_implemented(with_a_break, "aot_eager", "compiled")
    call(torch.ones(3))
    assert compiling.counts()["graph_breaks"] == 1 and compiling.counts()["recompiles"] == 0


def test_cuda_graphs_begin_a_step_before_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    asked: list[object] = []

    def compile_(function: object, **options: object) -> object:
        asked.append(options)
        return lambda *arguments: told.append("call")

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: told.append("begin"))
    call = compiling.as_implemented(double, "inductor", "cuda_graphs")
    call(torch.ones(3))
    call(torch.ones(3))
    assert told == ["begin", "call"] * 2
    assert asked == [{"backend": "inductor", "mode": "reduce-overhead", "dynamic": False}]
    compiling.as_implemented(double, "inductor", "compiled")(torch.ones(3))
    assert told == ["begin", "call"] * 2 + ["call"] and asked[1] == {"backend": "inductor", "dynamic": False}


def test_other_implementations_are_refused() -> None:
    with pytest.raises(ValueError, match="implementation: 'eager': expected compiled or cuda_graphs"):
        compiling.as_implemented(double, "inductor", "eager")


def test_caches_are_cold_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "of-the-user")
    seen = []
    for _ in range(2):
        with compiling.cold_caches():
            folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
            assert Path(os.environ["TRITON_CACHE_DIR"]).is_relative_to(folder) and not list(folder.iterdir())
            (folder / "kernel").touch()
            seen.append(folder)
    assert len(set(seen)) == 2 and not any(folder.exists() or folder.parent.name == "of-the-user" for folder in seen)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "of-the-user"
    with pytest.raises(KeyError), compiling.cold_caches():
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        raise KeyError
    assert not folder.exists()


def test_starting_the_compiler_is_paid_once_and_counted_nowhere() -> None:
    compiling.start_compiler.cache_clear()
    first = compiling.start_compiler("aot_eager", "cpu")
    assert first > 0 and compiling.start_compiler("aot_eager", "cpu") == first
    assert compiling.counts() == {"graphs": 0, "graph_breaks": 0, "recompiles": 0, "skipped_graphs": 0}


# --- interleaved --------------------------------------------------------------------------------------------


def test_turns_alternate_in_order() -> None:
    ran: list[str] = []

    def variant(name: str):
        def step(mark: Mark) -> None:
            ran.append(name)
            mark("half")

        return step

    prepared: list[int] = []
    found = time_interleaved(
        {name: variant(name) for name in "abc"},
        turns=3,
        warmup=1,
        timed=2,
        device="cpu",
        prepare=lambda: prepared.append(1),
    )
    assert "".join(ran) == "aaabbbccc" + "cccbbbaaa" + "aaabbbccc" and len(prepared) == len(ran)
    assert set(found) == set("abc") and set(found["a"]) == {"half", "step"}
    timing = found["b"]["step"]
    assert len(timing.samples_ms) == 6 and len(timing.warmup_ms) == 3 and timing.timer == "host clock"
    assert timing.timed_s > 0 and timing.warmup_s > 0 and found["b"]["half"].timed_s == 0


def test_samples_keep_the_order_of_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    fake = {"step": lambda: float(next(clock))}

    def phases(step: object, **_: object) -> dict[str, interleaving.Timing]:
        samples = [fake["step"](), fake["step"]()]
        return {"step": interleaving.Timing(samples, [], "host clock", 0.0, 1.0)}

    monkeypatch.setattr(interleaving, "time_phases", phases)
    found = time_interleaved({"a": print, "b": print}, turns=2, warmup=0, timed=2, device="cpu")
    assert found["a"]["step"].samples_ms == [0.0, 1.0, 6.0, 7.0] and found["b"]["step"].samples_ms == [
        2.0,
        3.0,
        4.0,
        5.0,
    ]
    assert split(found["a"]["step"].samples_ms, 2) == [[0.0, 1.0], [6.0, 7.0]] and found["a"]["step"].timed_s == 2.0


@pytest.mark.parametrize(("samples", "turns"), [([1.0, 2.0, 3.0], 2), ([1.0], 0), ([], 2)])
def test_a_turn_is_whole(samples: list[float], turns: int) -> None:
    with pytest.raises(ValueError, match=f"{len(samples)} samples are not those of {turns} turns"):
        split(samples, turns)


def test_no_turns_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one turn, not 0"):
        time_interleaved({"a": print}, turns=0, warmup=0, timed=1, device="cpu")
