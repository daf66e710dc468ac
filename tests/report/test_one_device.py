"""Answers about one device hold for what was measured; all others' words are those of the committed sites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfscribe.report.cs336 import PytorchAttention, TorchCompile
from perfscribe.report.cs336_kernels import FlashBenchmarking
from perfscribe.report.site import Row, Site
from perfscribe.show.rounding import Figure

OK = {"status": "ok", "reason": "none", "device": "cuda", "dtype": "fp32", "batch": "4"}
OK |= {"n": "10", "compiled_forward_ms_n": "16"}


def site(**tables: Sequence[Row]) -> Site:
    """A site of one GPU with these tables of CS336."""
    made = Site("made", Path("nowhere"), "cuda")
    made._read |= {f"cs336.{name}": list(rows) for name, rows in tables.items()}
    return made


def test_on_a_cpu_the_rows_are_what_ran_whatever_came_of_it() -> None:
    cell = {**OK, "device": "cpu", "head_dim": "48", "seq_len": "96", "forward_ms": "2", "forward_ms_n": "10"}
    late = {**cell, "seq_len": "512", "status": "timeout", "reason": "longer than 8 s"}
    unmeasured = {**cell, "seq_len": "1024", "status": "not_run", "reason": "not measured yet"}
    found = site(pytorch_attention=[cell, late, unmeasured])
    found.device = "cpu"
    page = PytorchAttention(found).markdown({})
    assert "| 96 | 48 | 2.00 |" in page and "| 512 | 48 | timeout |" in page and "1024" not in page
    code = "```\nx = 1\n```"  # words behind it would not end it
    assert f"{code}\n\n[Details]" in PytorchAttention(found).markdown({}, has_details=True, notes=code)


def test_a_gain_that_turns_cannot_tell_is_within_noise() -> None:
    """Whatever half of its interval's width is: an interval may lie askew."""
    levels = {**OK, "seq_len": "512", "implementation": "compiled", "backend": "inductor", "full_step_speedup": "1.3"}
    levels |= {"forward_speedup": "1.54", "forward_speedup_spread": "0.83"}
    verdicts = {"small": "cannot tell", "large": "faster"}
    gains = [levels | {"size": size, "forward_verdict": verdict} for size, verdict in verdicts.items()]
    text = TorchCompile(site(compiled_models_speedup=gains, compiled_models=gains)).answered[-1].text()
    assert "1.5x (within noise) as fast at small and 1.5x at large" in text


def test_flash_is_faster_from_a_length_on() -> None:
    ratios = {(str(128 << n), "64", "bf16"): Figure(ratio) for n, ratio in enumerate((2.0, 1.1, 0.25))}
    assert FlashBenchmarking.where_faster(ratios, "bf16") == "from 512 tokens on"
