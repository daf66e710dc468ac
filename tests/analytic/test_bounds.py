"""Ceilings and rooflines: the formulas, and which ceiling a rate is held against."""

from __future__ import annotations

from perfscribe.analytic import roofline
from perfscribe.analytic.parameters import transformer_parameters
from perfscribe.analytic.shapes import SIZES


def test_the_lower_ceiling_bounds() -> None:
    assert roofline.bound(10, 1e15, 5e12) == (5e13, "memory")
    assert roofline.bound(1000, 1e15, 5e12) == (1e15, "compute")


def test_bytes_of_attention() -> None:
    # batch 2, 3 heads, N = 8, d = 4, bf16: a tensor of 2·3·8·4·2 = 384 bytes, a matrix of 2·3·8·8·2 = 768
    assert roofline.fused_attention_bytes(2, 3, 8, 4, "bf16") == {"forward": 4 * 384, "backward": 8 * 384}
    eager = roofline.eager_attention_bytes(2, 3, 8, 4, "bf16")
    assert eager == {"forward": 4 * 384 + 4 * 768, "backward": 7 * 384 + 7 * 768}
    for dtype in ("fp32", "tf32"):
        assert roofline.eager_attention_bytes(2, 3, 8, 4, dtype) == {name: 2 * size for name, size in eager.items()}


def test_bytes_of_a_step_hold_the_state_and_what_is_saved() -> None:
    shape = SIZES["nano"]
    of_state = 40 * transformer_parameters(shape)
    short, long = (roofline.step_bytes(shape, 4, length, "fp32", "cpu") for length in (16, 32))
    # what is saved grows with length, matrices of attention with its square: the state stays
    assert of_state < short < long and 2 * (short - of_state) < long - of_state < 4 * (short - of_state)
