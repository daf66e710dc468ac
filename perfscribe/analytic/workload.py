"""Input of the transformer's memory models."""

from dataclasses import dataclass

from perfscribe.analytic.shapes import Shape

CUDA_GRANULARITY_BYTES = 512


@dataclass(frozen=True)
class Workload:
    """A pass of models.transformer.Model over (batch, seq_len) tokens.

    dtype: fp32 and tf32 use the same memory; bf16 and fp16 mean autocast with fp32 parameters, entered around
        forward and loss and left before backward.
    device: device of the model; autocast treats softmax differently on CPU and CUDA, and CUDA rounds every tensor up
        to 512 bytes.
    cublas_handles: CUDA only, see memory.CUBLAS_WORKSPACE_BYTES; 2 once a backward pass has run in the process.
    """

    shape: Shape
    batch: int
    seq_len: int
    dtype: str = "fp32"
    device: str = "cuda"
    cublas_handles: int = 2

    @property
    def low(self) -> bool:
        """Whether autocast runs the matrix products in 16 bits."""
        return self.dtype in ("bf16", "fp16")

    @property
    def width_bytes(self) -> int:
        """Bytes per element of a matrix product's output."""
        return 2 if self.low else 4

    @property
    def softmax_in_fp32(self) -> bool:
        """Whether softmax runs in fp32: CUDA autocast does so; CPU autocast keeps the dtype of its input."""
        return self.low and self.device == "cuda"

    @property
    def half_to_float_kernel(self) -> bool:
        """Whether softmax reads fp16 and writes fp32 in one CUDA kernel; bf16 input is copied to fp32 first."""
        return self.dtype == "fp16" and self.device == "cuda"

    @property
    def tokens(self) -> int:
        """Tokens in the batch."""
        return self.batch * self.seq_len

    @property
    def stream_bytes(self) -> int:
        """Bytes of one tensor of the residual stream, (batch, seq_len, d_model) in fp32."""
        return 4 * self.tokens * self.shape.d_model

    @property
    def row_bytes(self) -> int:
        """Bytes of one fp32 number per token."""
        return 4 * self.tokens

    @property
    def projection_bytes(self) -> int:
        """Bytes of the output of q, k, v or o: (batch, seq_len, d_model) in the compute dtype."""
        return self.width_bytes * self.tokens * self.shape.d_model

    @property
    def inner_bytes(self) -> int:
        """Bytes of (batch, seq_len, d_ff) in the compute dtype."""
        return self.width_bytes * self.tokens * self.shape.d_ff

    @property
    def score_elements(self) -> int:
        """Elements of (batch, heads, seq_len, seq_len), the N×N matrices of one layer."""
        return self.batch * self.shape.heads * self.seq_len * self.seq_len

    @property
    def logit_elements(self) -> int:
        """Elements of (batch, seq_len, vocab_size)."""
        return self.tokens * self.shape.vocab_size

    @property
    def granularity_bytes(self) -> int:
        """Allocation granularity of the device's allocator."""
        return CUDA_GRANULARITY_BYTES if self.device == "cuda" else 1
