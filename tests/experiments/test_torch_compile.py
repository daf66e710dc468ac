"""torch_compile: small cells that really run, and what is refused before it is timed."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from measured_cells import with_tokens

from perfscribe.analytic.shapes import LanguageModel
from perfscribe.base.cells import Cell
from perfscribe.experiments.cs336.torch_compile import measure, pairs
from perfscribe.instruments import compiling
from perfscribe.instruments.interleaving import split, time_interleaved
from perfscribe.instruments.timing import Mark
from perfscribe.models import training_step
from perfscribe.run import child

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
    return str(with_tokens(tmp_path_factory.mktemp("data"), 2, 8))


def cell(problem: str, data_folder: str = "") -> Cell:
    levels = {"problem": problem, "implementation": "compiled", "turns": 2, "warmup_passes": 1, "passes": 2}
    return Cell((ATTENTION if problem == "attention" else MODEL) | levels, data_folder=data_folder)


def test_what_compiling_takes_is_apart_from_the_passes_and_left_out_of_a_later_round(tmp_path: Path) -> None:
    first = cell("attention", str(tmp_path / "data"))
    compiled = measure.run(first)
    assert {len(samples) for samples in compiled.samples.values()} == {4}
    assert compiled.compile_s == pytest.approx(sum(compiled.series["first_passes_ms"]) / 1e3)
    assert compiled.values["graphs"] == 1 and compiled.values["graph_breaks"] == compiled.values["recompiles"] == 0
    (folder,) = (tmp_path / "cache" / "torch_compile").iterdir()
    (folder / "kept").touch()
    later = measure.run(replace(first, round=2))  # finds compiled code
    assert not later.series and not later.compile_s and later.samples and (folder / "kept").exists()
    measure.run(first)
    assert not (folder / "kept").exists()


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


@pytest.mark.parametrize(("wrong", "what"), [("loss", "the loss"), ("gradient", r"blocks\.\S+\.weight")])
def test_a_wrong_model_is_refused(data_folder: str, wrong: str, what: str) -> None:
    step = training_step.build(cell("model").read(LanguageModel), data_folder)

    class Other(torch.nn.Module):
        def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
            logits = step.model(token_ids)
            # 0.5: the same figures, half the gradient
            return logits * 1.01 if wrong == "loss" else logits.detach() + 0.5 * (logits - logits.detach())

    other = training_step.Step(step.model, torch.cat([step.inputs, step.targets[:, -1:]], dim=1), "cpu", "fp32")
    other.model = Other()  # type: ignore[assignment]
    with pytest.raises(ValueError, match=f"compiled: {what} is off"):
        pairs.compare(step, other)


def with_a_break(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return 2 * x


def test_graphs_recompilations_and_breaks_are_counted() -> None:
    call = compiling.compiled(torch.square, "aot_eager")
    for length in (3, 3, 4, 5):
        call(torch.ones(length))
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

    def step(mark: Mark, name: str) -> None:
        ran.append(name)
        mark("half")

    variants = {name: partial(step, name=name) for name in "abc"}
    counted = {"turns": 3, "warmup": 1, "timed": 2}
    timings = time_interleaved(variants, **counted, device="cpu", prepare=lambda: ran.append("-"))
    assert "".join(ran).replace("-", "") == "aaabbbccc" + "cccbbbaaa" + "aaabbbccc" and ran[::2] == ["-"] * 27
    timing = timings["b"]["step"]
    assert len(timing.samples_ms) == 6 and len(timing.warmup_ms) == 3 and timing.timer == "host clock"
    assert timing.timed_s > 0 and timing.warmup_s > 0 and timings["b"]["half"].timed_s == 0
    assert split([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3) == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
