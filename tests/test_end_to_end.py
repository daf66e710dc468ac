"""end_to_end: rates, and published times beside ours."""

from __future__ import annotations

import pytest

from perfscribe.experiments.end_to_end import show
from perfscribe.records.records import Record


def test_rates_and_published_times() -> None:
    factors = {"size": "small", "seq_len": 128, "batch": 4, "dtype": "tf32", "device": "cuda", "warmup_steps": 5}
    times = {"forward": 10.0, "backward": 20.0, "forward_backward": 31.0, "optimizer": 5.0, "full_step": 40.0}
    samples = {f"{name}_ms": [[time] * 3] for name, time in (times | {"forward_no_grad": 9.0}).items()}
    cell = Record("end_to_end", factors, "ok", "", "measured", samples, values={"gpu_name": "NVIDIA H200"})
    script, rates = (table.frame.iloc[0] for table in show.tables({"end_to_end": [cell]}))
    assert script["backward_by_difference_ms"] == 21 and script["forward_ms_brandon-snider"] > 0
    assert rates["tokens_per_s"] == pytest.approx(4 * 128 / 0.04)
    assert rates["mfu_percent"] == pytest.approx(100 * rates["tflop_per_s"] / 494.7)
    assert rates["share_of_product_percent"] == "no product measured"
