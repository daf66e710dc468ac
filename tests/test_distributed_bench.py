"""bench/distributed.py: what it makes of times, which end of an interval decides, and one run on gloo."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import distributed as bench  # noqa: E402
from bench import distributed_ranks as on_rank  # noqa: E402
from perfscribe.analytic.shapes import SIZES  # noqa: E402
from perfscribe.models.transformer import Model, next_token_loss  # noqa: E402

NOISE = (0.0, 0.4, -0.3, 0.1, -0.2, 0.3, -0.1, 0.2)


def steps(**adds_ms: float) -> dict[str, list[float]]:
    """Rounds of a step of 100 ms, to which the communication of each variant adds so much; a round is slow in all."""
    times = {}
    for name, added in adds_ms.items():
        times[name] = [100 + 3 * noise + added * (1 + 0.01 * noise) for noise in NOISE]
        times[name + on_rank.OFF] = [100 + 3 * noise for noise in NOISE]
    return times


def test_communication_added_is_compared_with_naives_and_its_high_end_counts():
    row = bench.exposed_row("added", "running", steps(naive=40.0, overlapped=4.0), "overlapped", 0.15)
    assert row.value == pytest.approx(0.1) and row.low <= 0.1 <= row.high < 0.11
    assert row.verdict == "yes"
    assert bench.exposed_row("added", "running", steps(naive=40.0, overlapped=6.5), "overlapped", 0.15).verdict == "no"
    times = steps(naive=40.0, overlapped=5.0)
    times["overlapped"][3:] = [ms + 4 for ms in times["overlapped"][3:]]
    row = bench.exposed_row("added", "running", times, "overlapped", 0.24)
    assert row.value < 0.24 and row.verdict == "yes"
    assert bench.exposed_row("added", "running", times, "overlapped", row.high - 0.001).verdict == "no"
    few = {name: ms[:5] for name, ms in times.items()}
    assert bench.exposed_row("added", "running", few, "overlapped", 1.0).verdict == "too few rounds: 5 of 6"


def test_nothing_is_proved_where_naive_adds_nothing():
    times = steps(naive=-1.0, overlapped=1.0)
    assert bench.exposed_row("added", "running", times, "overlapped", 0.15).verdict == "no"


def test_a_ratio_of_bandwidths_holds_by_its_low_end():
    def rank(ours_ms: float, bare_ms: float) -> dict:
        samples = {"ours": [[ours_ms, ours_ms + n] for n in NOISE], "bare": [[bare_ms] for _ in NOISE]}
        return {"samples": samples, "message_bytes": 2**30}

    # the slower rank counts, in each call: 1 GiB in 4.2 and 4.0 ms
    *rates, ratio = bench.all_reduce_rows([rank(4.2, 3.0), rank(4.0, 4.0)], 2)
    assert rates[1].value == pytest.approx(2**30 / 4e-3 / 1e9)
    assert ratio.low < ratio.value < 1 and ratio.at_least and ratio.verdict == "no"
    assert bench.all_reduce_rows([rank(4.0, 4.0), rank(4.0, 3.9)], 2)[-1].low == pytest.approx(1, abs=0.06)
    assert bench.Row("", "", 0.98, 0.971, 0.99, 0.97, True).verdict == "yes"
    assert bench.Row("", "", 0.98, 0.969, 0.99, 0.97, True).verdict == "no"


def ddp_rank(slow_ms: float) -> dict:
    times = steps(naive=40.0, overlapped=4.0, bucketed=2.0)
    times |= {on_rank.TORCH: [103 + n for n in NOISE], on_rank.BUCKETED_SHARDED: [90 + n for n in NOISE]}
    return {"blocks": {way: {k: [v + slow_ms for v in ms] for k, ms in times.items()} for way in ("running", "waited")}}


def test_rows_of_training_steps():
    rows = bench.ddp_rows([ddp_rank(0), ddp_rank(1.0)])
    bounded = {row.what: row for row in rows if row.bound is not None}
    assert {row.way for row in bounded.values()} == {on_rank.RUNNING}
    assert len(bounded) == 5 and all(row.verdict == "yes" for row in bounded.values())
    assert bounded["step, overlapped / torch DDP"].value == pytest.approx(105 / 104, rel=1e-2)
    assert bounded["training step, sharded / plain"].value == pytest.approx(91 / 103, rel=1e-2)
    medians = {row.what: row.value for row in rows if row.way == on_rank.WAITED}
    assert medians["step, naive: ms"] == pytest.approx(141, abs=0.5)


def test_variants_that_took_no_part_have_no_rows():
    times = steps(naive=40.0, **{on_rank.BUCKETED: 3.0})
    rows = {row.what: row for row in bench.ddp_rows([{"blocks": {on_rank.RUNNING: times}}])}
    assert rows["communication added, naive: ms"].value == pytest.approx(40, abs=0.1)
    assert [what for what, row in rows.items() if row.bound] == ["communication added, bucketed / naive"]
    assert bench.ddp_rows([{"blocks": {on_rank.RUNNING: {on_rank.TORCH: [1.0] * 6}}}])[0].value == 1


def test_memory_is_that_of_the_rank_furthest_from_the_prediction():
    blocks = {way: {"plain": [46.0] * 6, "sharded": [45.0, 47.0] * 3} for way in ("running", "waited")}
    state = 8 * 10**9

    def rank(sharded_bytes: float) -> dict:
        return {"blocks": blocks, "parameters": 10**9, "held_bytes": {"plain": state, "sharded": sharded_bytes}}

    *_, least, off = bench.optimizer_rows([rank(state / 2), rank(state / 2 + 0.1e9)])
    assert least.value == pytest.approx(3.9e9 / 2**30)
    assert off.value == pytest.approx(0.1 / 4) and off.verdict == "yes"
    assert bench.optimizer_rows([rank(state / 2), rank(0.7 * state)])[-1].verdict == "no"
    by_name = {(row.what, row.way): row for row in bench.optimizer_rows([rank(0), rank(0)])}
    assert by_name["optimizer step, sharded / plain", on_rank.RUNNING].verdict == "no"  # 1.00, but its interval is not


def test_a_run_on_gloo(tmp_path, capsys):
    out = tmp_path / "bench.json"
    argv = ["--backend", "gloo", "--rounds", "1", "--steps", "1", "--calls", "1", "--message-mib", "0.5", "--context",
            "4", "--global-batch", "4", "--pin", "--ways", "running", "waited", "--variants", *on_rank.VARIANTS,
            "--out", str(out)]  # fmt: skip
    assert bench.main(argv) == 0
    written = json.loads(out.read_text())
    assert [one["part"] for one in written["results"]] == ["all_reduce", "optimizer", "ddp"]
    rows = {(row["what"], row["way"]): row for one in written["results"] for row in one["rows"]}
    assert rows["state saved, deviation from the prediction", "bytes"]["verdict"] == "yes"
    assert rows["step, bucketed / torch DDP", on_rank.RUNNING]["verdict"] == "too few rounds: 1 of 6"
    assert rows["all-reduce of 0.5 MiB: GB/s of ours / bare loop", "calls"]["value"] > 0
    for name in on_rank.VARIANTS:
        assert rows[f"step, {name}: ms", on_rank.WAITED]["value"] > 0
    printed = capsys.readouterr().out
    assert printed.count("| processes | what |") == 3 and "| ≤ 0.15 | too few rounds" in printed


def test_one_compilation_serves_all_blocks_and_changes_nothing():
    torch.manual_seed(0)
    model = Model(SIZES["nano"], 8)
    ids = torch.randint(SIZES["nano"].vocab_size, (2, 9))

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        next_token_loss(model, ids[:, :-1], ids[:, 1:]).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    eager = gradients()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    on_rank.compile_blocks(model, backend="aot_eager")
    for ours, theirs in zip(gradients(), eager, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert len(model.blocks) > 1 and torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()


def test_a_part_that_fails_is_told_and_the_others_go_on(monkeypatch, capsys):
    def measure(part, *_):
        raise RuntimeError(f"no {part}\nsecond line")

    monkeypatch.setattr(bench, "measure", measure)
    assert bench.main(["--backend", "gloo", "--parts", "ddp", "optimizer"]) == 1
    printed = capsys.readouterr().out
    assert "optimizer, 2 processes: RuntimeError: no optimizer\n" in printed and "RuntimeError: no ddp" in printed
