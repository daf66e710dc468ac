"""A memory model of training steps of torch.nn.Transformer (encoder and decoder, post-norm, ReLU, dropout) with Adam.

Counted is what PyTorch 2.11 to 2.13 holds, layer by layer: what each keeps for backward, and its gradients as they
come. Attention is a fused kernel on CUDA (q, k, v, output and one number a row and head are kept) and plain products
on the CPU, whose fused kernel knows no dropout (scores are kept three times, in fp32). A mask of dropout takes a byte
an element on CUDA; on the CPU it is a factor of the input's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfscribe.counters.backward_replay import GRADIENTS
from perfscribe.counters.forward_replay import TEMPORARIES, WEIGHT_COPIES
from perfscribe.counters.ledger import Held, Items, Ledger
from perfscribe.counters.memory import (
    CUBLAS_WORKSPACE_BYTES,
    OPTIMIZER_TEMPORARIES,
    PARAMETERS,
    WORKSPACE,
    adamw_temporaries,
    total_bytes,
)
from perfscribe.counters.workload import CUDA_GRANULARITY_BYTES
from perfscribe.models.shapes import Seq2SeqShape

STATE = "Adam state"
ADAM_TEMPORARIES = "Adam temporaries"
BATCH = "batch"
ACTIVATIONS = "activations kept for backward"
LOW = ("bf16", "fp16")


@dataclass(frozen=True)
class Seq2SeqWorkload:
    """A training step on source (batch, source_length, d_model) and target (batch, target_length, d_model).

    dtype: of the matrix products; with fp32 weights bf16 and fp16 are autocast.
    weights: fp32 or bf16, of the whole model, its gradients and its optimizer state.
    """

    shape: Seq2SeqShape
    batch: int
    source_length: int
    target_length: int
    dtype: str = "fp32"
    weights: str = "fp32"
    device: str = "cuda"

    @property
    def weight_bytes(self) -> int:
        """Of one parameter, one gradient, one moment, one element of what layer norms and sums give."""
        return 2 if self.weights == "bf16" else 4

    @property
    def product_bytes(self) -> int:
        """Of one element of a matrix product's output."""
        return 2 if self.dtype in LOW else self.weight_bytes

    @property
    def autocasts(self) -> bool:
        """Whether the weights are copied to the products' dtype."""
        return self.product_bytes < self.weight_bytes

    @property
    def mask_bytes(self) -> int:
        """Of one element of a dropout mask."""
        return 1 if self.device == "cuda" else self.product_bytes


@dataclass
class _Block:
    """Attention or feed-forward with its dropout, sum and norm: its parameters and what is held for its backward."""

    tensors: list[int]
    held: list[Held]
    widest_bytes: int


def tensors(shape: Seq2SeqShape) -> list[int]:
    """Elements of every parameter tensor of torch.nn.Transformer."""
    norm = [shape.d_model] * 2
    attention, inner = _attention_tensors(shape), _feed_forward_tensors(shape)
    return [
        *[*attention, *inner] * shape.encoder_layers,
        *norm,
        *[*attention, *attention, *inner] * shape.decoder_layers,
        *norm,
    ]


def _attention_tensors(shape: Seq2SeqShape) -> list[int]:
    width = shape.d_model
    return [3 * width * width, 3 * width, width * width, width, width, width]


def _feed_forward_tensors(shape: Seq2SeqShape) -> list[int]:
    width, inner = shape.d_model, shape.d_ff
    return [width * inner, inner, width * inner, width, width, width]


def step_peak(load: Seq2SeqWorkload) -> Items:
    """Bytes by item at the peak of a training step from the second on; gradients are None before."""
    return max(step_phase_peaks(load).values(), key=total_bytes)


def step_phase_peaks(load: Seq2SeqWorkload) -> dict[str, Items]:
    """Bytes by item at the peak of each phase of that step: forward with the loss, backward, optimizer."""
    replay = _Replay(load)
    ledger, peaks = replay.ledger, {}
    for phase, run in (("forward", replay.forward), ("backward", replay.backward), ("optimizer", replay.optimizer)):
        ledger.forget_peak()
        run()
        peaks[phase] = {
            ADAM_TEMPORARIES if name == OPTIMIZER_TEMPORARIES else name: n for name, n in ledger.peak.items()
        }
    return peaks


class _Replay:
    """One step on a ledger."""

    def __init__(self, load: Seq2SeqWorkload) -> None:
        self.load = load
        self.ledger = Ledger(CUDA_GRANULARITY_BYTES if load.device == "cuda" else 1)
        self.blocks: list[_Block] = []
        self.ends: list[Held] = []
        positions = load.source_length + load.target_length
        for size in tensors(load.shape):
            self.ledger.new(PARAMETERS, load.weight_bytes * size)
            self.ledger.new(STATE, load.weight_bytes * size)
            self.ledger.new(STATE, load.weight_bytes * size)
        self.ledger.new(BATCH, load.weight_bytes * load.batch * positions * load.shape.d_model)
        if load.device == "cuda":
            for _ in range(2):  # one handle of the program's thread, one of autograd's
                self.ledger.new(WORKSPACE, CUBLAS_WORKSPACE_BYTES)

    def forward(self) -> None:
        """Encoder, decoder, loss."""
        load, shape = self.load, self.load.shape
        for _ in range(shape.encoder_layers):
            self._attention(load.source_length, load.source_length, cross=False)
            self._feed_forward(load.source_length)
        memory = load.batch * load.source_length * shape.d_model
        self.ends = [self._keep(load.weight_bytes * memory) for _ in range(2)]  # input and output of the last norm
        for _ in range(shape.decoder_layers):
            self._attention(load.target_length, load.target_length, cross=False)
            self._attention(load.target_length, load.source_length, cross=True)
            self._feed_forward(load.target_length)
        stream_bytes = load.weight_bytes * load.batch * load.target_length * shape.d_model
        self.ends += [self._keep(stream_bytes) for _ in range(2)]  # input of the last norm, log-softmax
        passing = [self.ledger.new(TEMPORARIES, stream_bytes) for _ in range(3)]  # output, product, its negative
        self.ledger.free(*passing)

    def _attention(self, queries: int, keys: int, *, cross: bool) -> None:
        """Multi-head attention of (batch, queries, d_model) over (batch, keys, d_model)."""
        load, width = self.load, self.load.shape.d_model
        rows, row_bytes = load.batch * queries, load.product_bytes * width
        key_bytes = load.batch * keys * row_bytes
        held = [self._keep(rows * row_bytes)]  # input of the projections, sequence first
        if cross:
            held += [self._keep(key_bytes)] if load.autocasts or keys > 1 else []
            q, kv = rows * row_bytes, 2 * key_bytes
        else:
            q, kv = rows * row_bytes, 2 * rows * row_bytes
        held += [self._keep(n) for n in self._products(queries, keys, q, kv, cross)]
        held.append(self._keep(rows * row_bytes))  # merged heads, input of the output projection
        held += self._dropout_and_norm(rows)
        held += self._weight_copies(4 * width * width)
        widest = max(3 * rows * row_bytes, load.weight_bytes * rows * width)
        self.blocks.append(_Block(_attention_tensors(load.shape), held, widest))

    def _products(self, queries: int, keys: int, q_bytes: int, kv_bytes: int, cross: bool) -> list[int]:
        """Bytes that scaled_dot_product_attention keeps."""
        load, shape = self.load, self.load.shape
        rows = load.batch * queries
        if load.device == "cuda":
            output = q_bytes if queries > 1 and load.batch > 1 else 0  # else the merged heads are the same memory
            return [q_bytes, kv_bytes, output, 4 * rows * shape.heads]
        scores = 4 * rows * shape.heads * keys
        key_rows = load.batch * keys
        scaled = [4 * rows * shape.d_model, 4 * key_rows * shape.d_model]
        if load.product_bytes == 2:
            values = 4 * key_rows * shape.d_model  # copied to fp32
        else:
            values = kv_bytes if cross else q_bytes + kv_bytes  # a view, which keeps what it is cut from
        return [*scaled, values, scores, scores, scores]

    def _feed_forward(self, length: int) -> None:
        load, shape = self.load, self.load.shape
        rows = load.batch * length
        inner = rows * shape.d_ff
        held = [self._keep(load.product_bytes * rows * shape.d_model)]
        held += [
            self._keep(n) for n in (load.product_bytes * inner, load.mask_bytes * inner, load.product_bytes * inner)
        ]
        held += self._dropout_and_norm(rows)
        held += self._weight_copies(2 * shape.d_model * shape.d_ff)
        widest = max(2 * load.product_bytes * inner, load.weight_bytes * rows * shape.d_model)
        self.blocks.append(_Block(_feed_forward_tensors(shape), held, widest))

    def _dropout_and_norm(self, rows: int) -> list[Held]:
        """Mask of the dropout; input, mean and inverse deviation of the norm behind the sum."""
        load, elements = self.load, rows * self.load.shape.d_model
        return [self._keep(n) for n in (load.mask_bytes * elements, load.weight_bytes * elements, 4 * rows, 4 * rows)]

    def _weight_copies(self, elements: int) -> list[Held]:
        """Autocast's copies, which the graph keeps."""
        load = self.load
        return [self.ledger.new(WEIGHT_COPIES, load.product_bytes * elements)] if load.autocasts else []

    def backward(self) -> None:
        """From the last block to the first: gradients come, what was kept goes."""
        ledger, load = self.ledger, self.load
        rows = load.batch * load.target_length
        stream = ledger.new(TEMPORARIES, load.weight_bytes * rows * load.shape.d_model)
        ledger.free(*self.ends)
        for block in reversed(self.blocks):
            passing = ledger.new(TEMPORARIES, block.widest_bytes)
            for size in block.tensors:
                low = ledger.new(TEMPORARIES, load.product_bytes * size) if load.autocasts else None
                ledger.new(GRADIENTS, load.weight_bytes * size)
                if low:
                    ledger.free(low)
            ledger.free(*block.held, passing)
        for _ in range(4):  # weights and biases of the two last norms
            ledger.new(GRADIENTS, load.weight_bytes * load.shape.d_model)
        ledger.free(stream)

    def optimizer(self) -> None:
        """Adam: foreach on CUDA, which takes the roots of all second moments at once, tensor by tensor on a CPU."""
        of_four_bytes = [size * self.load.weight_bytes // 4 for size in tensors(self.load.shape)]
        adamw_temporaries(self.ledger, of_four_bytes, "foreach" if self.load.device == "cuda" else "for-loop")

    def _keep(self, n_bytes: int) -> Held:
        return self.ledger.new(ACTIVATIONS, n_bytes)
