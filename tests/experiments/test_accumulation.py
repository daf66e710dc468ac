"""The four sums of the homework and the figures that explain them."""

import numpy as np
import pytest
import torch

from perfscribe.experiments.mixed_precision_accumulation import measure

CONFIG = {"device": ["cpu"], "terms": 1000, "addend": 0.01}
PUBLISHED = {"fp32": 10.0001, "fp16": 9.9531, "fp32_plus_fp16": 10.0021, "fp32_plus_upcast_fp16": 10.0021}


@pytest.fixture(scope="module")
def values():
    return {cell["accumulation"]: measure.run(cell).values for cell in measure.cells(CONFIG)}


def test_the_sums_are_the_published_ones_and_their_errors_exact(values):
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
        assert values[accumulation]["error"] == pytest.approx(1000 * (float(np.float16(0.01)) - 0.01), abs=1e-12)
    fp16 = values["fp16"]  # near ten it adds one ulp in place of the addend
    assert fp16["ulp_at_sum"] == fp16["last_increment"] == 0.0078125


@pytest.mark.parametrize("value", [0.0, 1e-7, 1.998, 2048.0, 60000.0])
def test_ulp_agrees_with_numpy(value):
    assert measure.ulp(value, torch.float16) == np.spacing(np.float16(value))
    assert measure.ulp(-value, torch.float32) == np.spacing(np.float32(value))


def test_an_overflowing_sum_says_so():
    cell = next(c for c in measure.cells(CONFIG | {"addend": 60000.0, "terms": 3}) if c["accumulation"] == "fp16")
    figures = measure.run(cell).values
    assert figures["sum"] == figures["error"] == "overflow" and figures["exact_sum"] == 180000.0
