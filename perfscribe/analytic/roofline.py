"""The roofline model: arithmetic intensity (FLOP per byte) and the rate it allows. Bytes here are least traffic.

attainable = min(peak rate, FLOP per byte x bandwidth).
Source: Williams, Waterman, Patterson, CACM 52 (2009). An implementation moves more bytes than counted here, so its real
point is further left; a rate above the bound means that operands were in a cache.
"""

from perfscribe.analytic import flops, memory
from perfscribe.analytic.parameters import transformer_parameters
from perfscribe.analytic.shapes import Shape
from perfscribe.analytic.workload import Workload

COMPUTE, MEMORY = "compute", "memory"
ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}

# Passes of eager attention over N x N matrices. Forward: scores written, read by softmax; softmax written, read by the
# product with v. Backward: softmax read twice (for dv, for ds), dp written and read, ds written and read twice.
EAGER_FORWARD_PASSES, EAGER_BACKWARD_PASSES = 4, 7

# fp32 accesses to each parameter in a training step: weight read in forward and in backward, gradient written; AdamW
# reads weight, gradient and both moments, and writes weight and both moments.
STEP_ACCESSES_PER_PARAMETER = 10


def bound(intensity: float, peak_flop_per_s: float, bytes_per_s: float) -> tuple[float, str]:
    """Return the lower ceiling at an intensity in FLOP per byte: its rate in FLOP/s, and COMPUTE or MEMORY."""
    return min((intensity * bytes_per_s, MEMORY), (peak_flop_per_s, COMPUTE))


def fused_attention_bytes(batch: int, heads: int, seq_len: int, head_dim: int, dtype: str) -> dict[str, int]:
    """Return the least traffic of attention that keeps no N x N matrix: operands and results once, by pass."""
    size = (batch, heads, seq_len, head_dim, ELEMENT_BYTES[dtype])
    return {"forward": flops.attention_forward_bytes(*size), "backward": flops.attention_backward_bytes(*size)}


def eager_attention_bytes(batch: int, heads: int, seq_len: int, head_dim: int, dtype: str) -> dict[str, int]:
    """Return the least traffic of unfused attention: operands and results once (backward: no output), N x N passes."""
    matrix = memory.attention_matrix_bytes(batch, heads, seq_len, ELEMENT_BYTES[dtype])
    tensor = batch * heads * seq_len * head_dim * ELEMENT_BYTES[dtype]
    return {
        "forward": 4 * tensor + EAGER_FORWARD_PASSES * matrix,
        "backward": 7 * tensor + EAGER_BACKWARD_PASSES * matrix,
    }


def step_bytes(shape: Shape, batch: int, seq_len: int, dtype: str, device: str) -> int:
    """Return the least traffic of an AdamW step: STEP_ACCESSES_PER_PARAMETER; saved tensors written once, read once."""
    saved = memory.saved_for_backward(Workload(shape, batch, seq_len, dtype, device))
    return 4 * STEP_ACCESSES_PER_PARAMETER * transformer_parameters(shape) + 2 * memory.total_bytes(saved)
