"""The models: numbers of parameters, and that each part computes what its name says."""

import copy

import pytest
import torch
import torch.nn.functional as F

from perfscribe.analytic.parameters import transformer_parameters, transformer_tensors
from perfscribe.analytic.shapes import SIZES, Shape
from perfscribe.instruments.correctness import LOSS_TOLERANCE
from perfscribe.models.loss_check import check_loss, float64_loss
from perfscribe.models.training_step import Step
from perfscribe.models.transformer import Model, RMSNorm, next_token_loss

SHAPE = Shape(d_model=32, d_ff=96, layers=2, heads=4, vocab_size=50)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model(SHAPE, context_length=16)


@pytest.fixture
def tokens():
    return torch.randint(SHAPE.vocab_size, (3, 16), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("size", SIZES)
def test_transformer_parameters_are_the_formula(size):
    shape = SIZES[size]
    model = Model(shape, 8, device="meta")
    tensors = [parameter.numel() for parameter in model.parameters()]
    assert tensors == transformer_tensors(shape)
    assert len(tensors) == 9 * shape.layers + 3
    assert sum(tensors) == transformer_parameters(shape)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}  # tables are not in the state
    assert model.head.weight is not model.embedding.weight


def turned(x):
    """Pairs of a head's numbers, 2i and 2i + 1 of C, turned by position / 10000^(2i / C)."""
    pairs, (length, width) = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()), x.shape[-2:]
    angles = torch.outer(torch.arange(length), 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def test_logits_are_those_of_the_definition(model, tokens):
    """Pre-norm blocks with RoPE, causal attention and SwiGLU; also of fewer tokens than the context has."""
    for name, parameter in model.double().named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, 1)
    weights = dict(model.named_parameters())

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T

    def norm(x, name):
        return F.rms_norm(x, (32,), weights[f"{name}.weight"], eps=1e-5)

    x = weights["embedding.weight"][tokens]
    for block in ("blocks.0", "blocks.1"):
        normed = norm(x, f"{block}.attention_norm")
        q, k, v = (
            linear(normed, f"{block}.attention.{matrix}").unflatten(-1, (4, 8)).transpose(1, 2) for matrix in "qkv"
        )
        out = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + linear(out, f"{block}.attention.o")
        normed = norm(x, f"{block}.feed_forward_norm")
        gate, up = (linear(normed, f"{block}.feed_forward.{matrix}") for matrix in ("w1", "w3"))
        x = x + linear(F.silu(gate) * up, f"{block}.feed_forward.w2")
    expected = linear(norm(x, "norm"), "head")
    for length in (16, 5):
        torch.testing.assert_close(model(tokens[:, :length]), expected[:, :length], rtol=1e-5, atol=1e-6)


def test_rms_norm_of_fp16_is_computed_in_fp32():
    norm, x = RMSNorm(512), 300 * torch.randn(4, 512)  # squares overflow fp16
    out = norm(x.half())
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), norm(x.half().float()), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_right_model_passes_and_a_wrong_one_is_named(model, tokens, dtype):
    step = Step(model, torch.cat((tokens, tokens[:, :1]), dim=1), "cpu", dtype)
    whole = copy.deepcopy(model).double()
    with torch.no_grad():
        expected = next_token_loss(whole, step.inputs, step.targets)
        torch.testing.assert_close(float64_loss(model, step.inputs, step.targets), expected, rtol=1e-12, atol=0)
    assert 0 <= check_loss(step)["loss_relative_error"] < LOSS_TOLERANCE[dtype]
    wrong = copy.deepcopy(model)
    with torch.no_grad():
        wrong.head.weight.mul_(3)
    with pytest.raises(ValueError, match=r"loss is off by .* against float64, allowed"):
        check_loss(step, compiled=wrong)
