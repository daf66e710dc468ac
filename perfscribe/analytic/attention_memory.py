"""Memory model, in bytes, of one eager attention call on tensors (batch, seq_len, head_dim).

The tensors are contiguous, in the cell's dtype and without autocast; q, k and v require gradients, which are None at
the start; the gradient of the output is a dense tensor allocated beforehand. CUDA's rounding to 512 bytes is omitted:
for the sizes in use, these tensors are multiples of it.
"""

from dataclasses import dataclass

from perfscribe.analytic.ledger import Held, Items, Ledger
from perfscribe.analytic.memory import CUBLAS_WORKSPACE_BYTES, WORKSPACE

INPUTS = "q, k, v"
UPSTREAM = "gradient of the output"
SCALED = "scaled q"
SCORES = "attention scores"
WEIGHTS = "attention weights (softmax)"
OUTPUT = "output"
GRADIENTS = "gradients of q, k, v"
MATRIX_GRADIENTS = "gradients of N×N matrices"


@dataclass(frozen=True)
class AttentionCall:
    """One call of attention.eager.scaled_dot_product_attention.

    element_bytes: 4 for fp32 and tf32, 2 for bf16 and fp16.
    device: cpu or cuda.
    cublas_handles: on CUDA 1 before the process's first backward pass, 2 from then on; 0 on the CPU.
    """

    batch: int
    seq_len: int
    head_dim: int
    element_bytes: int = 4
    cublas_handles: int = 2
    device: str = "cuda"

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one of q, k, v and the output."""
        return self.element_bytes * self.batch * self.seq_len * self.head_dim

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one N×N matrix."""
        return self.element_bytes * self.batch * self.seq_len * self.seq_len


def before_backward(call: AttentionCall) -> Items:
    """Return the bytes in use between the forward and the backward pass, by item."""
    return _forward(call)[0].live


def backward_peak(call: AttentionCall) -> Items:
    """Return the peak of the backward pass: three N×N matrices (softmax, its gradient, the scores' gradient), or four.

    On CUDA, softmax's backward first multiplies gradient and output into a further matrix
    (aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out).
    """
    ledger, saved = _forward(call)
    scaled, weights = saved
    new, free = ledger.new, ledger.free
    ledger.forget_peak()
    new(GRADIENTS, call.tensor_bytes)  # gradient of v
    of_weights = new(MATRIX_GRADIENTS, call.matrix_bytes)
    of_scores = new(MATRIX_GRADIENTS, call.matrix_bytes)
    free(new(MATRIX_GRADIENTS, call.matrix_bytes if call.device == "cuda" else 0))
    free(of_weights, weights)
    of_k = new(GRADIENTS, call.tensor_bytes)
    of_scaled = new(GRADIENTS, call.tensor_bytes)
    free(of_scores, scaled)
    new(GRADIENTS, call.tensor_bytes)  # gradient of k, copied into k's layout
    free(of_k)
    new(GRADIENTS, call.tensor_bytes)  # gradient of q
    free(of_scaled)
    return ledger.peak


def _forward(call: AttentionCall) -> tuple[Ledger, tuple[Held, Held]]:
    ledger = Ledger()
    new, free = ledger.new, ledger.free
    new(WORKSPACE, call.cublas_handles * CUBLAS_WORKSPACE_BYTES)
    new(INPUTS, 3 * call.tensor_bytes)
    new(UPSTREAM, call.tensor_bytes)
    scaled = new(SCALED, call.tensor_bytes)
    scores = new(SCORES, call.matrix_bytes)
    weights = new(WEIGHTS, call.matrix_bytes)
    free(scores)
    new(OUTPUT, call.tensor_bytes)
    return ledger, (scaled, weights)
