"""Cold compilation and what it did; variants timed interleaved."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from perfscribe.instruments import compiling
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


def test_graphs_recompilations_and_breaks_are_counted() -> None:
    call = compiling.compiled(double, "aot_eager")
    for length in (3, 3, 4, 5):
        assert torch.equal(call(torch.ones(length)), torch.full((length,), 2.0))
    assert compiling.counts() == {"graphs": 3, "graph_breaks": 0, "recompiles": 2}
    compiling.compiled(with_a_break, "aot_eager")(torch.ones(3))
    assert compiling.counts()["graph_breaks"] == 1


def test_caches_are_cold_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "of-the-user")
    seen = []
    for _ in range(2):
        with pytest.raises(KeyError), compiling.cold_caches():
            folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
            assert Path(os.environ["TRITON_CACHE_DIR"]).is_relative_to(folder) and not list(folder.iterdir())
            (folder / "kernel").touch()
            seen.append(folder)
            raise KeyError
    assert len(set(seen)) == 2 and not any(folder.exists() for folder in seen)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "of-the-user"


def test_turns_alternate_in_order_and_samples_keep_it() -> None:
    ran: list[str] = []
    prepared: list[int] = []

    def step(mark: Mark, name: str) -> None:
        ran.append(name)
        mark("half")

    variants = {name: partial(step, name=name) for name in "abc"}
    counted = {"turns": 3, "warmup": 1, "timed": 2}
    found = time_interleaved(variants, **counted, device="cpu", prepare=lambda: prepared.append(1))
    assert "".join(ran) == "aaabbbccc" + "cccbbbaaa" + "aaabbbccc" and len(prepared) == len(ran)
    timing = found["b"]["step"]
    assert len(timing.samples_ms) == 6 and len(timing.warmup_ms) == 3 and timing.timer == "host clock"
    assert timing.timed_s > 0 and timing.warmup_s > 0 and found["b"]["half"].timed_s == 0
    assert split([1.0, 2.0, 3.0, 4.0], 2) == [[1.0, 2.0], [3.0, 4.0]]
