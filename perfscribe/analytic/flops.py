"""FLOP of the language model and of attention, and the least bytes that attention moves.

A multiply-add counts as two FLOP. batch: sequences; seq_len: tokens in each. Three conventions, one per table:

- *exact*: every matrix product that models.transformer.Model runs, and nothing else (forward_matmul_flop). Causal
  masking saves no work in eager attention.
- *PaLM* (Chowdhery et al. 2022, appendix B): per token, forward and backward; the usual numerator of MFU
  (palm_flop_per_token).
- *FlashAttention*: attention only, halved if causal, scores recomputed in backward (attention_forward_flop and
  attention_backward_flop).
"""

from perfscribe.analytic.parameters import transformer_matmul_parameters
from perfscribe.analytic.shapes import Shape


def forward_matmul_flop(shape: Shape, batch: int, seq_len: int) -> dict[str, int]:
    """Return the exact FLOP of a forward pass by kind of matrix product, summed over layers."""
    tokens, width = batch * seq_len, shape.d_model
    one_product = 2 * tokens * seq_len * width
    return {
        "attention projections": shape.layers * 4 * 2 * tokens * width * width,
        "attention scores": shape.layers * one_product,
        "attention values": shape.layers * one_product,
        "feed-forward": shape.layers * 3 * 2 * tokens * width * shape.d_ff,
        "head": 2 * tokens * width * shape.vocab_size,
    }


def palm_flop_per_token(shape: Shape, seq_len: int) -> int:
    """Return PaLM's 6·N + 12·L·H·Q·T for forward and backward of one token; no causal discount, no recomputation.

    L layers, H heads of width Q (H·Q = d_model), T = seq_len; N: parameters in matrix products, that is with the head,
    without embedding and norms. With this N, batch · seq_len times it is 3 times the exact FLOP of a forward pass.
    """
    return 6 * transformer_matmul_parameters(shape) + 12 * shape.layers * shape.d_model * seq_len


def attention_forward_flop(batch: int, heads: int, seq_len: int, head_dim: int, *, causal: bool = False) -> int:
    """Return 4·B·S²·H·D, halved if causal (convention of the FlashAttention papers); heads are query heads."""
    return 4 * batch * heads * seq_len * seq_len * head_dim // (2 if causal else 1)


def attention_backward_flop(batch: int, heads: int, seq_len: int, head_dim: int, *, causal: bool = False) -> int:
    """Return 2.5 times the forward pass: five products, as the scores are recomputed (FlashAttention convention).

    Eager attention keeps its softmax and runs only four; its rate uses this convention too, to be comparable.
    """
    return 5 * attention_forward_flop(batch, heads, seq_len, head_dim, causal=causal) // 2


def attention_forward_bytes(batch: int, heads: int, seq_len: int, head_dim: int, element_bytes: int) -> int:
    """Return the least traffic of a forward pass: q, k and v read once, the output written once."""
    return 4 * batch * heads * seq_len * head_dim * element_bytes


def attention_backward_bytes(batch: int, heads: int, seq_len: int, head_dim: int, element_bytes: int) -> int:
    """Return the least traffic of backward with recomputed softmax: q, k, v, output and its gradient in, three out."""
    return 8 * batch * heads * seq_len * head_dim * element_bytes
