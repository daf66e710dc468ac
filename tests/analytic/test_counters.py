"""Parameters, FLOP, traffic and peak rates against published figures, torch's own counter and hand arithmetic."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from perfscribe.analytic import flops, roofline
from perfscribe.analytic import weak_scaling as w
from perfscribe.analytic.parameters import transformer_matmul_parameters
from perfscribe.analytic.peaks import mfu, peak_bandwidth, peak_flops
from perfscribe.analytic.shapes import SIZES, Shape
from perfscribe.analytic.workshop_shapes import BLOOM_TOKENIZER_VOCABULARY, SimpleGptShape
from perfscribe.attention.eager import scaled_dot_product_attention
from perfscribe.models.transformer import Model, next_token_loss


@pytest.mark.parametrize(("shape", "batch", "seq_len"), [(Shape(32, 96, 2, 4, 50), 3, 24), (SIZES["small"], 1, 16)])
def test_exact_flop_are_those_that_torch_counts(shape, batch, seq_len):
    model = Model(shape, seq_len, device="meta")
    tokens = torch.zeros(batch, seq_len, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as forward:
        loss = next_token_loss(model, tokens, tokens)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    exact = sum(flops.forward_matmul_flop(shape, batch, seq_len).values())
    assert (exact, 2 * exact) == (forward.get_total_flops(), backward.get_total_flops())
    # PaLM's count without the embedding is the exact one
    assert batch * seq_len * flops.palm_flop_per_token(shape, seq_len) == 3 * exact
    linear = [p.numel() for name, p in model.named_parameters() if "norm" not in name and "embedding" not in name]
    assert transformer_matmul_parameters(shape) == sum(linear)


def test_attention_flop_are_those_that_torch_counts():
    q, k, v = (torch.zeros(2, 3, 40, 16, device="meta", requires_grad=True) for _ in range(3))
    with FlopCounterMode(display=False) as forward:
        out = scaled_dot_product_attention(q, k, v)
    with FlopCounterMode(display=False) as backward:
        out.backward(torch.zeros_like(out))
    assert flops.attention_forward_flop(2, 3, 40, 16) == forward.get_total_flops()
    # eager attention keeps its softmax: four products where FlashAttention has five
    assert flops.attention_backward_flop(2, 3, 40, 16) * 4 == backward.get_total_flops() * 5


@pytest.mark.parametrize(
    ("name", "tera", "memory"),
    [
        ("NVIDIA H200", [67, 494.7, 989, 989], 4.8),
        ("Tesla V100-SXM2-32GB", [15.7, None, None, 125], 0.9),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", [None] * 4, None),  # a slice has not the whole card's peak
        ("not an NVIDIA H200", [None] * 4, None),
    ],
)
def test_peaks_of_devices_and_mfu(name, tera, memory):
    peaks = [peak_flops(name, dtype) for dtype in ("fp32", "tf32", "bf16", "fp16")]
    assert [peak and peak.flop_per_s for peak in peaks] == [rate and pytest.approx(rate * 1e12) for rate in tera]
    bandwidth = peak_bandwidth(name, "memory")
    assert (bandwidth and bandwidth.bytes_per_s) == (memory and pytest.approx(memory * 1e12))
    assert mfu(989e12, 2.0, peaks[2]) == (pytest.approx(0.5) if peaks[2] else None)


def test_bytes_of_attention() -> None:
    # batch 2, 3 heads, N = 8, d = 4, bf16: a tensor of 2·3·8·4·2 = 384 bytes, a matrix of 2·3·8·8·2 = 768
    assert roofline.fused_attention_bytes(2, 3, 8, 4, "bf16") == {"forward": 4 * 384, "backward": 8 * 384}
    eager = roofline.eager_attention_bytes(2, 3, 8, 4, "bf16")
    assert eager == {"forward": 4 * 384 + 4 * 768, "backward": 7 * 384 + 7 * 768}
    for dtype in ("fp32", "tf32"):
        assert roofline.eager_attention_bytes(2, 3, 8, 4, dtype) == {name: 2 * size for name, size in eager.items()}


@pytest.mark.parametrize("shape", [SimpleGptShape(), SimpleGptShape(vocab_size=BLOOM_TOKENIZER_VOCABULARY)])
def test_variants_of_equal_work(shape):
    setups = w.setups(shape, 512, (2, 4, 8, 16), (3, 6, 12, 24), (8, 4, 2, 1))
    source, same, deeper = ([s for s in setups if s.variant == v] for v in (w.SOURCE, w.SAME_MODEL, w.DEEPER))
    assert {s.flop_per_gpu for s in same} == {source[0].flop_per_gpu}
    assert [s.total_batch for s in same] == [16, 32, 64, 128]
    assert all(s.flop_per_gpu == pytest.approx(deeper[0].flop_per_gpu, rel=0.01) for s in deeper)
    assert [s.batch for s in deeper] == [8, 4, 2, 1] and deeper[0].shape == source[0].shape
    assert (w.efficiency_percent(10, 20), w.inverted_percent(10, 20)) == (50, 200)
