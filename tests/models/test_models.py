"""The models: numbers of parameters, and that each part computes what its name says."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from perfscribe.analytic.parameters import transformer_parameters, transformer_tensors
from perfscribe.analytic.shapes import SIZES, Shape
from perfscribe.instruments.correctness import LOSS_TOLERANCE
from perfscribe.models.loss_check import check_loss, float64_loss
from perfscribe.models.training_step import Step
from perfscribe.models.transformer import Model, RMSNorm, RotaryEmbedding, SwiGLU, next_token_loss

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


def test_rms_norm_is_torch_s_in_fp32_or_wider():
    norm, x = RMSNorm(512), 300 * torch.randn(4, 512)  # squares overflow fp16
    torch.nn.init.normal_(norm.weight)
    torch.testing.assert_close(norm(x), F.rms_norm(x, (512,), norm.weight, eps=1e-5))
    out = norm(x.half())
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), norm(x.half().float()), rtol=1e-3, atol=1e-3)
    x = torch.randn(4, 512, dtype=torch.float64)
    expected = F.rms_norm(x, (512,), norm.double().weight, eps=1e-5)
    torch.testing.assert_close(norm(x), expected, rtol=1e-13, atol=1e-13)


def test_rotary_turns_pairs_by_position_over_theta():
    x = torch.randn(1, 1, 6, 8, dtype=torch.float64)
    turned = RotaryEmbedding(8, 10).double()(x)
    for position in range(6):
        for i in range(4):
            angle = position * 10_000 ** (-2 * i / 8)
            even, odd = x[0, 0, position, 2 * i], x[0, 0, position, 2 * i + 1]
            cos, sin = math.cos(angle), math.sin(angle)
            expected = torch.stack([even * cos - odd * sin, even * sin + odd * cos])
            torch.testing.assert_close(turned[0, 0, position, 2 * i : 2 * i + 2], expected, atol=1e-6, rtol=0)


def test_swiglu():
    block = SwiGLU(SHAPE)
    x = torch.randn(2, 3, 32)
    gate, value = x @ block.w1.weight.T, x @ block.w3.weight.T
    torch.testing.assert_close(block(x), (gate * torch.sigmoid(gate) * value) @ block.w2.weight.T)


def test_a_token_changes_no_earlier_logits(model, tokens):
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % SHAPE.vocab_size
    with torch.no_grad():
        before, after = model(tokens), model(changed)
        torch.testing.assert_close(before[:, :5], model(tokens[:, :5]))
    assert before.shape == (3, 16, 50)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.isclose(before[:, 9:], after[:, 9:]).all(dim=-1).any()


def test_blocks_are_residual_and_pre_norm(model, tokens):
    """With the output matrices at zero every block passes its input on, and the logits are those of the embedding."""
    with torch.no_grad():
        for block in model.blocks:
            block.attention.o.weight.zero_()
            block.feed_forward.w2.weight.zero_()
        expected = model.head(F.rms_norm(model.embedding(tokens), (32,), eps=1e-5))
        torch.testing.assert_close(model(tokens), expected)


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
