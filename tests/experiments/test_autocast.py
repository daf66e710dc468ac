"""Dtypes under autocast, and the variance measurement against cases with a known answer."""

from __future__ import annotations

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
SIX = [
    *("parameters_dtype", "fc1_output_dtype", "layernorm_output_dtype"),
    *("logits_dtype", "loss_dtype", "gradients_dtype"),
]


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


@pytest.mark.parametrize("dtype, half", [("fp16", "float16"), ("bf16", "bfloat16")])
def test_six_dtypes_on_the_cpu(dtype, half):
    cell = next(c for c in measure.cells(CONFIG) if c["part"] == "dtypes" and c["dtype"] == dtype)
    values = run(cell)
    # On the CPU layer_norm is not in autocast's fp32 list; on CUDA it is (see the test below).
    assert [values[name] for name in SIX] == ["float32", half, half, half, "float32", "float32"]
    assert 0.5 < values["loss"] < 4  # near ln 5 for random weights and 5 classes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype, half", [("fp16", "float16"), ("bf16", "bfloat16")])
def test_six_dtypes_on_cuda(dtype, half):
    cells = measure.cells(CONFIG | {"device": ["cuda"]})
    values = run(next(c for c in cells if c["part"] == "dtypes" and c["dtype"] == dtype))
    assert [values[name] for name in SIX] == ["float32", half, "float32", half, "float32", "float32"]


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


def test_difference_of_moments_cancels_in_fp32_too(variances):
    figures = variances["fp32", 10000]
    assert figures["variance_moments_relative_error"] > 100 * figures["variance_two_pass_relative_error"]
    assert figures["moments_negative_rows"] > 0


def test_sums_keep_their_accumulator_in_the_dtype() -> None:
    ones = torch.ones(1, 4095, dtype=torch.float16)
    assert variance.left_to_right_sum(ones).item() == 2048  # where 1 is half an ulp and is rounded away
    assert variance.pairwise_sum(ones).item() == 4096


def test_inputs_that_rounding_makes_equal_are_named(variances):
    figures = variances["bf16", 10000]  # neighbours are 64 apart there
    assert figures["inputs_variance"] == 0
    assert figures["variance_two_pass_relative_error"] == "constant inputs"
