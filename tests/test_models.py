"""The models: numbers of parameters, and that each part computes what its name says."""

from __future__ import annotations

import copy
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from perfscribe.analytic.parameters import seq2seq_parameters, transformer_parameters, transformer_tensors
from perfscribe.analytic.shapes import SIZES, Seq2SeqShape, Shape
from perfscribe.attention.eager import scaled_dot_product_attention
from perfscribe.instruments import precision
from perfscribe.models.loss_check import TOLERANCE, check_loss, float64_loss
from perfscribe.models.seq2seq import make_seq2seq
from perfscribe.models.toy import ToyModel
from perfscribe.models.training_step import Step
from perfscribe.models.transformer import Model, RMSNorm, RotaryEmbedding, SwiGLU, next_token_loss
from perfscribe.records import environment

SHAPE = Shape(d_model=32, d_ff=96, layers=2, heads=4, vocab_size=50)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model(SHAPE, context_length=16)


@pytest.fixture
def tokens():
    return torch.randint(SHAPE.vocab_size, (3, 16), generator=torch.Generator().manual_seed(1))


# --- shapes ---------------------------------------------------------------------------------------


def test_shapes_and_counters_need_no_torch():
    names = ("shapes", "parameters", "flops", "peaks", "memory", "attention_memory")
    code = "import sys\n" + "".join(f"import perfscribe.analytic.{name}\n" for name in names)
    code += "sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'pandas')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "sizes", [dict(heads=3), dict(d_model=30, heads=6), dict(layers=0), dict(vocab_size=0), dict(d_ff=-1)]
)
def test_impossible_shapes_are_refused(sizes):
    with pytest.raises(ValueError, match="must"):
        Shape(**{"d_model": 32, "d_ff": 96, "layers": 2, "heads": 4, **sizes})


def test_seq2seq_heads_must_divide():
    with pytest.raises(ValueError, match="3 does not divide 512"):
        Seq2SeqShape(heads=3)


# --- parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_transformer_parameters_are_the_formula(size):
    shape = SIZES[size]
    tensors = [parameter.numel() for parameter in Model(shape, 8, device="meta").parameters()]
    assert tensors == transformer_tensors(shape)
    assert len(tensors) == 9 * shape.layers + 3
    assert sum(tensors) == transformer_parameters(shape)


def test_transformer_has_no_biases_and_an_untied_head(model):
    assert not [name for name, _ in model.named_parameters() if "bias" in name]
    assert model.head.weight is not model.embedding.weight


def test_tables_are_no_parameters_and_not_in_the_state(model):
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_seq2seq_of_the_homework():
    assert count(make_seq2seq(device="meta")) == 44_140_544 == seq2seq_parameters(Seq2SeqShape())


def test_small_seq2seq():
    shape = Seq2SeqShape(d_model=24, heads=4, encoder_layers=2, decoder_layers=1, d_ff=40)
    model = make_seq2seq(shape)
    assert count(model) == seq2seq_parameters(shape)
    assert model(torch.rand(5, 1, 24), torch.rand(5, 7, 24)).shape == (5, 7, 24)


def test_toy():
    model = ToyModel(20, 5)
    assert [(name, tuple(p.shape)) for name, p in model.named_parameters()] == [
        ("fc1.weight", (10, 20)),
        ("ln.weight", (10,)),
        ("ln.bias", (10,)),
        ("fc2.weight", (5, 10)),
    ]
    assert count(model) == 10 * 20 + 2 * 10 + 10 * 5
    x = torch.randn(3, 20)
    hidden = F.layer_norm(torch.relu(x @ model.fc1.weight.T), (10,))
    torch.testing.assert_close(model(x), hidden @ model.fc2.weight.T)


# --- parts of the transformer ---------------------------------------------------------------------


def test_rms_norm_is_torch_s():
    norm = RMSNorm(24)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(5, 7, 24)
    torch.testing.assert_close(norm(x), F.rms_norm(x, (24,), norm.weight, eps=1e-5))


def test_rms_norm_computes_low_precision_in_fp32_and_float64_in_float64():
    norm, x = RMSNorm(512), 300 * torch.randn(4, 512)  # squares overflow fp16
    out = norm(x.half())
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), norm(x.half().float()), rtol=1e-3, atol=1e-3)
    x = torch.randn(4, 512, dtype=torch.float64)
    expected = F.rms_norm(x, (512,), eps=1e-5)
    torch.testing.assert_close(norm.double()(x), expected, rtol=1e-13, atol=1e-13)


def test_rotary_turns_pairs_by_position_over_theta():
    x = torch.randn(1, 1, 6, 8, dtype=torch.float64)
    turned = RotaryEmbedding(8, 10).double()(x)
    for position in range(6):
        for i in range(4):
            angle = position * 10_000 ** (-2 * i / 8)
            even, odd = x[0, 0, position, 2 * i], x[0, 0, position, 2 * i + 1]
            expected = [
                even * math.cos(angle) - odd * math.sin(angle),
                even * math.sin(angle) + odd * math.cos(angle),
            ]
            got = turned[0, 0, position, 2 * i : 2 * i + 2]
            torch.testing.assert_close(got, torch.stack(expected), atol=1e-6, rtol=0)


def test_rotary_scores_depend_on_distance_alone():
    q, k = torch.randn(1, 1, 1, 16).expand(1, 1, 12, 16), torch.randn(1, 1, 1, 16).expand(1, 1, 12, 16)
    rotary = RotaryEmbedding(16, 12)
    scores = (rotary(q) @ rotary(k).mT)[0, 0]
    torch.testing.assert_close(scores[:-1, :-1], scores[1:, 1:], atol=1e-4, rtol=1e-4)
    assert (scores[0, 1:] - scores[0, 0]).abs().min() > 1e-4


def test_swiglu():
    block = SwiGLU(SHAPE)
    x = torch.randn(2, 3, 32)
    gate, value = x @ block.w1.weight.T, x @ block.w3.weight.T
    torch.testing.assert_close(block(x), (gate * torch.sigmoid(gate) * value) @ block.w2.weight.T)


# --- the whole transformer ------------------------------------------------------------------------


def test_a_token_changes_no_earlier_logits(model, tokens):
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % SHAPE.vocab_size
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert before.shape == (3, 16, 50)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.isclose(before[:, 9:], after[:, 9:]).all(dim=-1).any()


def test_a_shorter_sequence_gives_the_same_logits(model, tokens):
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[:, :5], model(tokens[:, :5]))


def test_blocks_are_residual_and_pre_norm(model, tokens):
    """With the output matrices at zero every block passes its input on, and the logits are those of the embedding."""
    with torch.no_grad():
        for block in model.blocks:
            block.attention.o.weight.zero_()
            block.feed_forward.w2.weight.zero_()
        expected = model.head(F.rms_norm(model.embedding(tokens), (32,), eps=1e-5))
        torch.testing.assert_close(model(tokens), expected)


def test_too_many_tokens_are_refused(model):
    with pytest.raises(ValueError, match="17 tokens do not fit into a context length of 16"):
        model(torch.zeros(1, 17, dtype=torch.int64))


def test_it_learns_a_fixed_batch(model, tokens):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = next_token_loss(model, tokens[:, :-1], tokens[:, 1:])
    assert first.item() == pytest.approx(math.log(50), rel=0.2)
    for _ in range(20):
        optimizer.zero_grad()
        loss = next_token_loss(model, tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5 * first.item()


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_residual_stream_and_the_loss_in_fp32(model, tokens, low):
    streams = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, out: streams.append(out.dtype))
    exact = next_token_loss(model, tokens, tokens)
    streams.clear()
    with torch.autocast("cpu", dtype=low):
        assert model(tokens).dtype == low
        loss = next_token_loss(model, tokens, tokens)
    assert set(streams) == {torch.float32} and loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=1e-2)


def test_a_model_in_bf16_stays_in_bf16(tokens):
    model = Model(SHAPE, 16, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model(tokens).dtype == torch.bfloat16


# --- the check before timing ------------------------------------------------------------------------------------


def made_step(model, tokens, dtype="fp32"):
    return Step(model, torch.cat((tokens, tokens[:, :1]), dim=1), "cpu", dtype)


def test_the_loss_in_float64_block_by_block_is_that_of_the_whole_model(model, tokens):
    step = made_step(model, tokens)
    whole = copy.deepcopy(model).double()
    with torch.no_grad():
        expected = next_token_loss(whole, step.inputs, step.targets)
        got = float64_loss(model, step.inputs, step.targets)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)
    assert model.head.weight.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_right_model_passes_and_a_wrong_one_is_named(model, tokens, dtype):
    step = made_step(model, tokens, dtype)
    assert 0 <= check_loss(step)["loss_relative_error"] < TOLERANCE[dtype]
    wrong = copy.deepcopy(model)
    with torch.no_grad():
        wrong.head.weight.mul_(3)
    with pytest.raises(ValueError, match=r"loss [\d.]+ against [\d.]+ in float64, allowed error"):
        check_loss(step, compiled=wrong)


def test_attention_can_be_replaced(model, tokens):
    calls = []

    def spy(q, k, v, mask):
        calls.append(q.shape)
        return scaled_dot_product_attention(q, k, v, mask)

    before = model(tokens)
    model.use_attention(spy)
    torch.testing.assert_close(model(tokens), before, rtol=0, atol=0)
    assert calls == [(3, 4, 16, 8)] * 2


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        ("cpu", "fp32", ()),
        ("cpu", "bf16", ()),
        ("cpu", "tf32", ("tf32",)),
        ("cuda", "fp32", ("cuda",)),
        ("cuda", "fp16", ("cuda",)),
        ("cuda", "tf32", ("cuda", "tf32")),
        ("cuda", "bf16", ("cuda", "bf16")),
    ],
)
def test_a_dtype_names_what_it_needs(device, dtype, expected):
    assert precision.requires(device, dtype) == expected
    assert set(expected) <= set(environment.CAPABILITIES)
