"""Dtypes under autocast, and the variance measurement against cases with a known answer."""

import math

import pytest
import torch

from perfscribe.experiments.autocast_dtypes import measure, variance

CONFIG = {
    "device": ["cpu"],
    "dtype": ["fp16", "bf16"],
    "variance_mean": [0, 10, 100, 10000],
    "variance_std": 1.0,
    "features": 512,
}
SIX = [f"{name}_dtype" for name in ("parameters", "fc1_output", "layernorm_output", "logits", "loss", "gradients")]
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def run(cell):
    torch.manual_seed(0)
    return measure.run(cell).values


@pytest.fixture(scope="module")
def variances():
    return {
        (cell["dtype"], cell["variance_mean"]): run(cell)
        for cell in measure.cells(CONFIG)
        if cell["part"] == "variance"
    }


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NO_GPU)])
@pytest.mark.parametrize("dtype, half", [("fp16", "float16"), ("bf16", "bfloat16")])
def test_six_dtypes(dtype, half, device):
    cells = measure.cells(CONFIG | {"device": [device]})
    values = run(next(c for c in cells if c["part"] == "dtypes" and c["dtype"] == dtype))
    norm = half if device == "cpu" else "float32"  # on CUDA alone layer_norm is in autocast's fp32 list
    assert [values[name] for name in SIX] == ["float32", half, norm, half, "float32", "float32"]
    assert 0.5 < values["loss"] < 4  # near ln 5 for random weights and 5 classes


def test_fp16_overflows_where_fp32_does_not(variances):
    figures = variances["fp16", 100]  # 512 squares of 100 exceed 65504, and so do deviations from a wrong mean
    assert figures["variance_moments_relative_error"] == "overflow"
    assert isinstance(variances["fp16", 0]["variance_moments_relative_error"], float)
    large = variances["fp16", 10000]
    assert large["mean_relative_error"] == "overflow"
    assert large["not_finite_rows"] == large["rows"] and large["overflow"] is True
    assert variance.middle(torch.tensor([1.0, math.nan, math.inf])) == "overflow"
    assert variance.middle(torch.tensor([1.0, 2.0, math.nan])) == 2.0
    assert variances["fp32", 10000]["overflow"] is False


def test_bf16_loses_the_variance_to_rounding_not_to_range(variances):
    accurate = variances["fp32", 0]
    assert accurate["variance_two_pass_relative_error"] < 1e-5 and accurate["overflow"] is False
    assert accurate["inputs_variance"] == pytest.approx(1, rel=0.05)
    assert variances["bf16", 100]["layer_norm_relative_error"] < 1e-2, "torch's own stays accurate"
    figures = variances["bf16", 10]
    assert figures["overflow"] is False
    assert figures["variance_two_pass_relative_error"] > 0.5
    assert figures["variance_pairwise_relative_error"] < 0.05
    figures = variances["bf16", 10000]  # neighbours are 64 apart there
    assert figures["inputs_variance"] == 0
    assert figures["variance_two_pass_relative_error"] == "constant inputs"


def test_difference_of_moments_cancels_in_fp32_too(variances):
    figures = variances["fp32", 10000]
    assert figures["variance_moments_relative_error"] > 100 * figures["variance_two_pass_relative_error"]
    assert figures["moments_negative_rows"] > 0


def test_sums_keep_their_accumulator_in_the_dtype() -> None:
    ones = torch.ones(1, 4095, dtype=torch.float16)
    assert variance.left_to_right_sum(ones).item() == 2048  # where 1 is half an ulp and is rounded away
    assert variance.pairwise_sum(ones).item() == 4096
