"""Dtypes under autocast, and the variance measurement against cases with a known answer."""

import numpy as np
import pytest
import torch

from perfscribe.experiments.cs336.autocast_dtypes import levels, measure
from perfscribe.experiments.cs336.mixed_precision_accumulation import levels as sums_levels
from perfscribe.experiments.cs336.mixed_precision_accumulation import measure as sums

CONFIG = {"device": ["cpu"], "dtype": ["fp16", "bf16"], "features": 512}
CONFIG |= {"variance_mean": [0, 10, 100, 10000], "variance_std": 1.0}
SIX = [f"{name}_dtype" for name in ("parameters", "fc1_output", "layernorm_output", "logits", "loss", "gradients")]
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def run(cell):
    torch.manual_seed(0)
    return measure.run(cell).values


@pytest.fixture(scope="module")
def variances():
    return {
        (cell["dtype"], cell["variance_mean"]): run(cell) for cell in levels.cells(CONFIG) if cell["part"] == "variance"
    }


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NO_GPU)])
@pytest.mark.parametrize("dtype, half", [("fp16", "float16"), ("bf16", "bfloat16")])
def test_six_dtypes(dtype, half, device):
    cells = levels.cells(CONFIG | {"device": [device]})
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
    figures = variances["fp32", 10000]
    assert figures["overflow"] is False
    # The difference of moments cancels in fp32 too.
    assert figures["variance_moments_relative_error"] > 100 * figures["variance_two_pass_relative_error"]
    assert figures["moments_negative_rows"] > 0


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


SUMS = {"device": ["cpu"], "terms": 1000, "addend": 0.01}
PUBLISHED = {"fp32": 10.0001, "fp16": 9.9531, "fp32_plus_fp16": 10.0021, "fp32_plus_upcast_fp16": 10.0021}


def test_the_sums_are_the_published_ones_and_their_errors_exact():
    values = {cell["accumulation"]: sums.run(cell).values for cell in sums_levels.cells(SUMS)}
    assert {name: round(figures["sum"], 4) for name, figures in values.items()} == PUBLISHED
    for figures in values.values():
        assert figures["exact_sum"] == 10.0
        assert figures["error"] == pytest.approx(figures["sum"] - 10, abs=1e-15)
        assert figures["relative_error"] == pytest.approx(figures["error"] / 10)
        parts = figures["error_from_addend"] + figures["error_from_accumulation"]
        assert parts == pytest.approx(figures["error"], abs=1e-15)
    for accumulation in ("fp32_plus_fp16", "fp32_plus_upcast_fp16"):
        assert values[accumulation]["rounded_addend"] == float(np.float16(0.01))
        assert values[accumulation]["error_from_accumulation"] == 0
    fp16 = values["fp16"]  # near ten it adds one ulp in place of the addend
    assert fp16["ulp_at_sum"] == fp16["last_increment"] == np.spacing(np.float16(fp16["sum"]))
    assert values["fp32"]["ulp_at_sum"] == np.spacing(np.float32(values["fp32"]["sum"]))


def test_an_overflowing_sum_says_so():
    cell = next(c for c in sums_levels.cells(SUMS | {"addend": 60000.0, "terms": 3}) if c["accumulation"] == "fp16")
    figures = sums.run(cell).values
    assert figures["sum"] == figures["error"] == "overflow" and figures["exact_sum"] == 180000.0
