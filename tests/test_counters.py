"""Parameters, FLOP and peak rates against published figures, torch's own counter and hand arithmetic."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from perfscribe.analytic import flops, memory
from perfscribe.analytic.parameters import (
    seq2seq_parameters,
    transformer_matmul_parameters,
    transformer_parameters,
    transformer_tensors,
)
from perfscribe.analytic.peaks import DTYPES, mfu, peak_flops
from perfscribe.analytic.shapes import SIZES, Seq2SeqShape, Shape
from perfscribe.attention.eager import scaled_dot_product_attention
from perfscribe.models.transformer import Model, next_token_loss

MIB, GIB = 2**20, 2**30


# --- published figures ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("small", 128_625_408),
        ("medium", 423_183_360),
        ("large", 969_411_840),  # published: GAOYUEtianc/Stanford-CS336-assignments
        ("xl", 1_998_235_200),  # published as 1.998B: brandon-snider/cs336-a2
        ("2.7B", 3_406_809_600),
    ],
)
def test_parameters_of_the_handout_s_sizes(size, parameters):
    assert transformer_parameters(SIZES[size]) == parameters


def test_xl_has_435_parameter_tensors():
    assert len(transformer_tensors(SIZES["xl"])) == 435


@pytest.mark.parametrize(("width", "parameters"), [(512, 44_140_544), (1024, 126_005_248), (4096, 1_409_916_928)])
def test_parameters_of_the_polaris_model(width, parameters):
    assert seq2seq_parameters(Seq2SeqShape(d_model=width)) == parameters


@pytest.mark.parametrize(("seq_len", "mib"), [(128, 5), (256, 10), (512, 20)])
def test_residual_stream_of_2_7b(seq_len, mib):
    assert memory.residual_stream_bytes(SIZES["2.7B"], 4, seq_len) == mib * MIB


def test_attention_scores_of_2_7b_at_512():
    assert memory.attention_matrix_bytes(4, SIZES["2.7B"].heads, 512) == 128 * MIB


def test_one_attention_matrix_of_the_attention_experiment():
    assert memory.attention_matrix_bytes(8, 1, 16384) == 8 * GIB


def test_flop_of_the_attention_leaderboard():
    problem = {"batch": 1, "heads": 16, "seq_len": 16384, "head_dim": 64, "causal": True}
    forward, backward = flops.attention_forward_flop(**problem), flops.attention_backward_flop(**problem)
    assert (round(forward / 1e12, 4), round(backward / 1e12, 4)) == (0.5498, 1.3744)
    assert round((forward + backward) / 1e12, 4) == 1.9241


# --- FLOP -----------------------------------------------------------------------------------------

SHAPES = [Shape(32, 96, 2, 4, 50), Shape(48, 80, 3, 1, 70), SIZES["small"]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("batch", "seq_len"), [(1, 16), (3, 24)])
def test_exact_flop_are_those_that_torch_counts(shape, batch, seq_len):
    model = Model(shape, seq_len, device="meta")
    tokens = torch.zeros(batch, seq_len, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as forward:
        loss = next_token_loss(model, tokens, tokens)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    exact = sum(flops.forward_matmul_flop(shape, batch, seq_len).values())
    assert (exact, 2 * exact) == (forward.get_total_flops(), backward.get_total_flops())


def test_exact_flop_by_kind_of_product():
    got = flops.forward_matmul_flop(Shape(8, 20, 3, 2, 50), batch=2, seq_len=5)
    assert got == {
        "attention projections": 3 * 4 * 2 * 10 * 8 * 8,
        "attention scores": 3 * 2 * (2 * 5 * 5 * 8),
        "attention values": 3 * 2 * (2 * 5 * 5 * 8),
        "feed-forward": 3 * 3 * 2 * 10 * 8 * 20,
        "head": 2 * 10 * 8 * 50,
    }


def test_the_causal_discount_halves_the_attention_products_alone():
    shape = SIZES["small"]
    full = flops.forward_matmul_flop(shape, 4, 512)
    half = flops.forward_matmul_flop(shape, 4, 512, causal_discount=True)
    for kind, flop in full.items():
        assert half[kind] == (flop // 2 if kind in ("attention scores", "attention values") else flop)


@pytest.mark.parametrize("size", SIZES)
def test_palm_without_the_embedding_is_the_exact_count(size):
    shape = SIZES[size]
    forward = sum(flops.forward_matmul_flop(shape, 4, 256).values())
    assert 4 * 256 * flops.palm_flop_per_token(shape, 256) == 3 * forward


def test_palm_of_given_parameters():
    # 6·N + 12·L·H·Q·T by hand
    assert flops.palm_flop_per_token(Shape(8, 20, 3, 2), 100, parameters=1000) == 6 * 1000 + 12 * 3 * 2 * 4 * 100


def test_parameters_in_products_are_all_but_embedding_and_norms():
    model = Model(SHAPES[0], 8, device="meta")
    linear = [p.numel() for name, p in model.named_parameters() if "norm" not in name and "embedding" not in name]
    assert transformer_matmul_parameters(SHAPES[0]) == sum(linear)


def test_attention_flop_are_those_that_torch_counts():
    q, k, v = (torch.zeros(2, 3, 40, 16, device="meta", requires_grad=True) for _ in range(3))
    with FlopCounterMode(display=False) as forward:
        out = scaled_dot_product_attention(q, k, v)
    with FlopCounterMode(display=False) as backward:
        out.backward(torch.zeros_like(out))
    assert flops.attention_forward_flop(2, 3, 40, 16) == forward.get_total_flops()
    # eager attention keeps its softmax: four products where FlashAttention has five
    assert flops.attention_backward_flop(2, 3, 40, 16) * 4 == backward.get_total_flops() * 5


def test_attention_bytes():
    assert flops.attention_forward_bytes(2, 3, 40, 16, element_bytes=2) == 4 * (2 * 3 * 40 * 16 * 2)
    assert flops.attention_backward_bytes(2, 3, 40, 16, element_bytes=2) == 8 * (2 * 3 * 40 * 16 * 2)


# --- peak rates -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H200", {"fp32": 67, "tf32": 494.7, "bf16": 989, "fp16": 989}),
        ("NVIDIA H100 80GB HBM3", {"fp32": 67, "tf32": 494.7, "bf16": 989, "fp16": 989}),
        ("NVIDIA H100 PCIe", {"fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756}),
        ("NVIDIA A100-SXM4-40GB", {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312}),
        ("NVIDIA A100 80GB PCIe", {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312}),
        ("NVIDIA GeForce RTX 4090", {"fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2}),
        ("Tesla V100-SXM2-32GB", {"fp32": 15.7, "tf32": None, "bf16": None, "fp16": 125}),
    ],
)
def test_peaks_of_known_devices(name, tera):
    for dtype in DTYPES:
        peak = peak_flops(name, dtype)
        if tera[dtype] is None:
            assert peak is None
        else:
            assert peak is not None and peak.flop_per_s == pytest.approx(tera[dtype] * 1e12)
            assert "NVIDIA" in peak.source


@pytest.mark.parametrize(
    "name",
    [
        "",
        "AMD EPYC 9654",
        "NVIDIA H300",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",  # a slice has not the whole card's peak
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "not an NVIDIA H200",
    ],
)
def test_an_unknown_device_has_no_peak(name):
    assert [peak_flops(name, dtype) for dtype in DTYPES] == [None] * 4


def test_variants_of_a_chip_differ():
    assert peak_flops("NVIDIA H100 NVL", "bf16") != peak_flops("NVIDIA H100 80GB HBM3", "bf16")


def test_an_unknown_dtype_is_an_error():
    with pytest.raises(ValueError, match="fp8"):
        peak_flops("NVIDIA H200", "fp8")


def test_mfu():
    peak = peak_flops("NVIDIA H200", "bf16")
    assert mfu(989e12, 2.0, peak) == pytest.approx(0.5)
    assert mfu(989e12, 2.0, peak, devices=4) == pytest.approx(0.125)
    assert mfu(989e12, 2.0, None) is None
    for seconds, devices in ((0.0, 1), (-1.0, 1), (1.0, 0)):
        with pytest.raises(ValueError, match="positive"):
            mfu(1.0, seconds, peak, devices)
