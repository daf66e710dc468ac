"""pytorch_attention: published figures beside ours."""

from perfscribe.base.cells import Cell
from perfscribe.experiments.attention import measure


def test_the_peak_of_forward_is_below_that_of_both_passes() -> None:
    levels = {"device": "cpu", "implementation": "eager", "dtype": "fp32", "seq_len": 256, "head_dim": 16, "batch": 4}
    found = measure.run(Cell({**levels, "warmup_passes": 0, "passes": 1})).values
    assert 0 < found["peak_forward_bytes"] < found["peak_allocated_bytes"]
