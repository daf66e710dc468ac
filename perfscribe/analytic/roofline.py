"""The roofline model: FLOP a byte, and the rate that arithmetic and memory allow. Bytes here are least traffic.

attainable = min(peak rate, FLOP a byte x bandwidth).
Source: Williams, Waterman, Patterson, CACM 52 (2009). What an implementation really moves is more than counted here, so
that its own point lies further left; a rate above the bound means that operands were found in a cache.
"""

from __future__ import annotations

from perfscribe.analytic import flops, memory
from perfscribe.analytic.parameters import transformer_parameters
from perfscribe.analytic.shapes import Shape
from perfscribe.analytic.workload import Workload

COMPUTE, MEMORY = "compute", "memory"
ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}

# Passes of eager attention over N x N matrices. Forward: scores written, read by softmax; softmax written, read by the
# product with v. Backward: softmax read twice (for dv, for ds), dp written and read, ds written and read twice.
EAGER_FORWARD_PASSES, EAGER_BACKWARD_PASSES = 4, 7

# fp32 accesses of a training step to each parameter: weight read in forward and in backward, gradient written; AdamW
# reads weight, gradient and both moments, and writes weight and both moments.
STEP_ACCESSES_PER_PARAMETER = 10


def bound(intensity: float, peak_flop_per_s: float, bytes_per_s: float) -> tuple[float, str]:
    """The lower of both ceilings at an intensity in FLOP a byte, in FLOP/s, and which: COMPUTE or MEMORY."""
    return min((intensity * bytes_per_s, MEMORY), (peak_flop_per_s, COMPUTE))


def fused_attention_bytes(batch: int, heads: int, seq_len: int, head_dim: int, dtype: str) -> dict[str, int]:
    """Least traffic of attention that keeps no N x N matrix, forward and backward: operands and results once."""
    size = (batch, heads, seq_len, head_dim, ELEMENT_BYTES[dtype])
    return {"forward": flops.attention_forward_bytes(*size), "backward": flops.attention_backward_bytes(*size)}


def eager_attention_bytes(batch: int, heads: int, seq_len: int, head_dim: int, dtype: str) -> dict[str, int]:
    """Least traffic of attention in separate operations: its operands and results once (backward does without the
    output, as the softmax was kept), and its passes over N x N matrices."""
    matrix = memory.attention_matrix_bytes(batch, heads, seq_len, ELEMENT_BYTES[dtype])
    tensor = batch * heads * seq_len * head_dim * ELEMENT_BYTES[dtype]
    return {
        "forward": 4 * tensor + EAGER_FORWARD_PASSES * matrix,
        "backward": 7 * tensor + EAGER_BACKWARD_PASSES * matrix,
    }


def step_bytes(shape: Shape, batch: int, seq_len: int, dtype: str, device: str) -> int:
    """Least traffic of a training step with AdamW: fp32 weights and state as often as STEP_ACCESSES_PER_PARAMETER says,
    and each tensor that is saved for backward written once and read once."""
    saved = memory.saved_for_backward(Workload(shape, batch, seq_len, dtype, device))
    return 4 * STEP_ACCESSES_PER_PARAMETER * transformer_parameters(shape) + 2 * memory.total_bytes(saved)
