"""Replays the allocations of models.transformer.Model, forward and backward, on a ledger.

Each method stands for the module, or for the backward pass of the module, of the same name, and frees a tensor where
CPython's frames and autograd's graph let go of it in PyTorch 2.11 to 2.13. Not replayed: scalars, and the temporaries
of one number a token inside the backward pass of RMSNorm.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perfscribe.counters.ledger import Held, Ledger
from perfscribe.counters.workload import Workload

# Items of the transformer's memory; reports print these names.
WEIGHT_COPIES = "low-precision weight copies"
RESIDUAL = "residual stream"
NORMS = "normalised inputs"
INPUTS = "inputs of linear layers"
ROPE = "low-precision rotary tables"
QKV = "attention q, k, v"
SCORES = "attention scores"
WEIGHTS = "attention weights (softmax)"
MERGED = "attention outputs"
FEED_FORWARD = "feed-forward activations"
LOGITS = "logits"
LOG_SOFTMAX = "log-softmax"
GRADIENTS = "parameter gradients"
ACTIVATION_GRADIENTS = "gradients of activations"
TEMPORARIES = "temporaries"


@dataclass
class _Linear:
    """What a linear layer keeps: its input (which other layers may share), and autocast's copy of the weight."""

    numel: int
    input_bytes: int  # in the compute dtype
    kept: list[Held]
    casts_input: bool


@dataclass
class _Norm:
    x: Held
    normed: Held
    inverse_rms: Held


@dataclass
class _Attention:
    q: _Linear
    k: _Linear
    v: _Linear
    o: _Linear
    kept_q: list[Held] = field(default_factory=list)
    kept_k: list[Held] = field(default_factory=list)
    kept_v: list[Held] = field(default_factory=list)
    weights: list[Held] = field(default_factory=list)


@dataclass
class _FeedForward:
    w1: _Linear
    w2: _Linear
    w3: _Linear
    gate: Held
    silu: Held
    value: Held


@dataclass
class _Block:
    attention_norm: _Norm
    attention: _Attention
    feed_forward_norm: _Norm
    feed_forward: _FeedForward


class Forward:
    """The forward pass. keep: gradients are enabled, so that what backward needs stays."""

    def __init__(self, load: Workload, ledger: Ledger, *, keep: bool) -> None:
        self.load = load
        self.ledger = ledger
        self.keep = keep
        self.blocks: list[_Block] = []
        self.cache: list[Held] = []  # autocast's weight copies, alive until autocast is left

    def run(self) -> Held:
        """Tokens to logits, which are returned alive."""
        x = self.ledger.new(RESIDUAL, self.load.stream_bytes)
        for _ in range(self.load.shape.layers):
            x = self.block(x)
        self.last_norm, normed = self.norm(x)
        self.head, logits = self.linear(
            normed, self.load.shape.d_model, self.load.shape.vocab_size, LOGITS, casts_input=True
        )
        self.let_go_of_input(normed)
        self.let_go(x)
        return logits

    def loss(self, logits: Held) -> None:
        """Cross-entropy: log-softmax in fp32; the logits die with the call."""
        copy = None
        if self.load.low and not self.load.half_to_float_kernel:
            copy = self.ledger.new(TEMPORARIES, 4 * self.load.logit_elements)
        self.log_softmax = self.ledger.new(LOG_SOFTMAX, 4 * self.load.logit_elements)
        self.ledger.new(LOG_SOFTMAX, 4)  # the sum of the targets' weights, which backward divides by
        if copy:
            self.ledger.free(copy)
        self.ledger.free(logits)

    def leave_autocast(self) -> None:
        """Autocast's cache goes; under gradients the graph still holds the copies."""
        if not self.keep:
            self.ledger.free(*self.cache)

    def block(self, x: Held) -> Held:
        new, free, load = self.ledger.new, self.ledger.free, self.load
        attention_norm, normed = self.norm(x)
        attention, y = self.attention(normed)
        self.let_go_of_input(normed)
        middle = new(RESIDUAL, load.stream_bytes)
        free(y)
        feed_forward_norm, normed = self.norm(middle)
        feed_forward, y = self.feed_forward(normed)
        self.let_go_of_input(normed)
        out = new(RESIDUAL, load.stream_bytes)
        free(y)
        self.let_go(middle)
        self.let_go(x)
        self.blocks.append(_Block(attention_norm, attention, feed_forward_norm, feed_forward))
        return out

    def norm(self, x: Held) -> tuple[_Norm, Held]:
        new, free, load = self.ledger.new, self.ledger.free, self.load
        square = new(TEMPORARIES, load.stream_bytes)
        mean = new(TEMPORARIES, load.row_bytes)
        free(square)
        shifted = new(TEMPORARIES, load.row_bytes)
        free(mean)
        inverse_rms = new(NORMS, load.row_bytes)
        free(shifted)
        normed = new(NORMS, load.stream_bytes)
        out = new(TEMPORARIES if load.low else INPUTS, load.stream_bytes)
        self.let_go(normed, inverse_rms)
        return _Norm(x, normed, inverse_rms), out

    def linear(
        self, x: Held, n_in: int, n_out: int, item: str, *, casts_input: bool = False
    ) -> tuple[_Linear, Held]:
        new, load = self.ledger.new, self.load
        kept = [x]
        copy = None
        if load.low:
            self.cache.append(new(WEIGHT_COPIES, 2 * n_in * n_out))
            if casts_input:
                copy = new(INPUTS, 2 * load.tokens * n_in)
            kept = [self.cache[-1], copy or x]
        out = new(item, load.width_bytes * load.tokens * n_out)
        if copy:
            self.let_go(copy)
        return _Linear(n_in * n_out, load.width_bytes * load.tokens * n_in, kept, load.low and casts_input), out

    def rotary(self, x: Held) -> tuple[list[Held], Held]:
        new, free, load = self.ledger.new, self.ledger.free, self.load
        table_bytes = load.seq_len * load.shape.head_dim  # two bytes for each pair
        tables = [new(ROPE, table_bytes), new(ROPE, table_bytes)] if load.low else []
        halves = []
        for _ in range(2):
            products = [new(TEMPORARIES, load.projection_bytes // 2) for _ in range(2)]
            halves.append(new(TEMPORARIES, load.projection_bytes // 2))
            free(*products)
        turned = new(QKV, load.projection_bytes)
        free(*halves)
        self.let_go(*tables)
        free(x)
        return tables, turned

    def attention(self, x: Held) -> tuple[_Attention, Held]:
        new, free, load = self.ledger.new, self.ledger.free, self.load
        width, heads = load.shape.d_model, load.shape.heads
        q_linear, q = self.linear(x, width, width, TEMPORARIES, casts_input=True)
        q_tables, q = self.rotary(q)
        k_linear, k = self.linear(x, width, width, TEMPORARIES, casts_input=True)
        k_tables, k = self.rotary(k)
        v_linear, v = self.linear(x, width, width, QKV, casts_input=True)
        scaled, weights, v_copy, out = self.scaled_dot_product_attention(v)
        merged = new(MERGED, load.projection_bytes) if heads > 1 else out
        o_linear, projected = self.linear(merged, width, width, TEMPORARIES)
        self.let_go(merged, k)
        free(q)
        if v_copy is not v:
            free(v)
        self.let_go(v)
        if merged is not out:
            free(out)
        return _Attention(
            q_linear, k_linear, v_linear, o_linear, [scaled, *q_tables], [k, *k_tables], [v_copy], weights
        ), projected

    def scaled_dot_product_attention(self, v: Held) -> tuple[Held, list[Held], Held, Held]:
        """Give back what is kept (scaled q, softmax, contiguous v), and the output."""
        new, free, load = self.ledger.new, self.ledger.free, self.load
        scores_bytes = load.width_bytes * load.score_elements
        scaled = new(QKV, load.projection_bytes)
        scores = new(SCORES, scores_bytes)
        self.let_go(scaled)
        masked = new(SCORES, scores_bytes)
        free(scores)
        if load.softmax_in_fp32:
            copy = [] if load.half_to_float_kernel else [new(SCORES, 4 * load.score_elements)]
            weights = [new(WEIGHTS, 4 * load.score_elements)]
            free(*copy, masked)
            weights.append(new(WEIGHTS, 2 * load.score_elements))
        else:
            weights = [new(WEIGHTS, scores_bytes)]
            free(masked)
        # bmm wants (batch·heads, n, c): v, a transposed view, must be copied unless one of the two is 1
        v_copy = new(QKV, load.projection_bytes) if load.batch > 1 and load.shape.heads > 1 else v
        out = new(TEMPORARIES if load.shape.heads > 1 else MERGED, load.projection_bytes)
        if v_copy is not v:
            self.let_go(v_copy)
        self.let_go(*weights)
        return scaled, weights, v_copy, out

    def feed_forward(self, x: Held) -> tuple[_FeedForward, Held]:
        new, load = self.ledger.new, self.load
        width, inner = load.shape.d_model, load.shape.d_ff
        w1, gate = self.linear(x, width, inner, FEED_FORWARD, casts_input=True)
        silu = new(FEED_FORWARD, load.inner_bytes)
        self.let_go(gate)
        w3, value = self.linear(x, width, inner, FEED_FORWARD, casts_input=True)
        product = new(FEED_FORWARD, load.inner_bytes)
        self.let_go(silu, value)
        w2, out = self.linear(product, inner, width, TEMPORARIES)
        self.let_go(product)
        return _FeedForward(w1, w2, w3, gate, silu, value), out

    def let_go(self, *tensors: Held) -> None:
        """No frame refers to them any more: only backward could still hold them."""
        if not self.keep:
            self.ledger.free(*tensors)

    def let_go_of_input(self, normed: Held) -> None:
        """Under autocast the linear layers keep copies of their own and this fp32 tensor goes."""
        if self.load.low or not self.keep:
            self.ledger.free(normed)


class Backward:
    """The backward pass of a Forward that ran with keep and a loss; no gradients exist before it."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.load = forward.load
        self.ledger = forward.ledger

    def run(self) -> None:
        """From the loss to all parameter gradients."""
        load = self.load
        grad = self.linear(self.loss(), self.forward.head)
        grad = self.norm(grad, self.forward.last_norm, residual=None)
        for block in reversed(self.forward.blocks):
            inner = self.feed_forward(grad, block.feed_forward)
            grad = self.norm(inner, block.feed_forward_norm, residual=grad)
            inner = self.attention(grad, block.attention)
            grad = self.norm(inner, block.attention_norm, residual=grad)
        self.ledger.new(GRADIENTS, 4 * load.shape.vocab_size * load.shape.d_model)
        self.ledger.free(grad)

    def loss(self) -> Held:
        new, free, load = self.ledger.new, self.ledger.free, self.load
        of_log_softmax = new(ACTIVATION_GRADIENTS, 4 * load.logit_elements)
        direct = load.half_to_float_kernel or not load.low
        grad = new(ACTIVATION_GRADIENTS, (load.width_bytes if direct else 4) * load.logit_elements)
        free(of_log_softmax, self.forward.log_softmax)
        return grad if direct else self.cast(grad, 2 * load.logit_elements)

    def linear(self, grad: Held, layer: _Linear, *, keeps_grad: bool = False) -> Held:
        """Gradient of the output to gradient of the input; the weight's gradient stays."""
        new, free, load = self.ledger.new, self.ledger.free, self.load
        of_weight = new(TEMPORARIES if load.low else GRADIENTS, load.width_bytes * layer.numel)
        of_input = new(ACTIVATION_GRADIENTS, layer.input_bytes)
        if not keeps_grad:
            free(grad)
        free(*layer.kept)
        if layer.casts_input:
            of_input = self.cast(of_input, 2 * layer.input_bytes)
        if load.low:
            new(GRADIENTS, 4 * layer.numel)
            free(of_weight)
        return of_input

    def norm(self, grad: Held, norm: _Norm, residual: Held | None) -> Held:
        """Gradient of the norm's output to gradient of its input, to which the skip connection's is added."""
        new, free, stream = self.ledger.new, self.ledger.free, self.load.stream_bytes
        of_normed = new(ACTIVATION_GRADIENTS, stream)
        product = new(TEMPORARIES, stream)
        new(GRADIENTS, 4 * self.load.shape.d_model)
        free(product, grad, norm.normed)
        of_x = new(ACTIVATION_GRADIENTS, stream)
        product = new(TEMPORARIES, stream)
        free(product, of_normed)
        if residual:
            of_x = self.add(residual, of_x)
        free(norm.inverse_rms)
        temporaries = [new(TEMPORARIES, stream) for _ in range(3)]  # of the mean; x¹; 2·x
        of_square = new(ACTIVATION_GRADIENTS, stream)
        free(*temporaries, norm.x)
        return self.add(of_x, of_square)

    def feed_forward(self, grad: Held, saved: _FeedForward) -> Held:
        new, free, load = self.ledger.new, self.ledger.free, self.load
        of_product = self.linear_from_stream(grad, saved.w2)
        of_silu = new(ACTIVATION_GRADIENTS, load.inner_bytes)
        of_value = new(ACTIVATION_GRADIENTS, load.inner_bytes)
        free(of_product, saved.value, saved.silu)
        of_x = self.linear(of_value, _without_shared(saved.w3, load))
        of_gate = new(ACTIVATION_GRADIENTS, load.inner_bytes)
        free(of_silu, saved.gate)
        return self.add(of_x, self.linear(of_gate, saved.w1))

    def attention(self, grad: Held, saved: _Attention) -> Held:
        new, free, load = self.ledger.new, self.ledger.free, self.load
        of_out = self.linear_from_stream(grad, saved.o)
        if load.shape.heads > 1:
            of_out = self.copy(of_out)
        of_v = new(ACTIVATION_GRADIENTS, load.projection_bytes)
        of_masked = self.softmax(of_out, saved)
        of_scores = self.copy(of_masked)  # where() gives back zeros outside the mask
        of_k = new(ACTIVATION_GRADIENTS, load.projection_bytes)
        of_q = new(ACTIVATION_GRADIENTS, load.projection_bytes)
        free(of_scores, saved.kept_q[0], saved.kept_k[0])
        of_q = self.copy(of_q)  # the scale
        of_x = self.linear(self.copy(of_v), _without_shared(saved.v, load))
        of_k = self.rotary(of_k, saved.kept_k)
        of_x = self.add(of_x, self.linear(of_k, _without_shared(saved.k, load)))
        of_q = self.rotary(of_q, saved.kept_q)
        return self.add(of_x, self.linear(of_q, saved.q))

    def softmax(self, of_out: Held, saved: _Attention) -> Held:
        """From the gradient of attention's output to that of the masked scores, in the compute dtype."""
        new, free, load = self.ledger.new, self.ledger.free, self.load
        scores_bytes = load.width_bytes * load.score_elements
        of_weights = new(ACTIVATION_GRADIENTS, scores_bytes)
        free(of_out, *saved.kept_v)
        if not load.softmax_in_fp32:
            of_masked = new(ACTIVATION_GRADIENTS, scores_bytes)
            free(of_weights, *saved.weights)
            return of_masked
        free(saved.weights[1])
        of_weights = self.cast(of_weights, 2 * scores_bytes)
        of_masked = new(ACTIVATION_GRADIENTS, scores_bytes if load.half_to_float_kernel else 2 * scores_bytes)
        free(of_weights, saved.weights[0])
        return of_masked if load.half_to_float_kernel else self.cast(of_masked, scores_bytes)

    def rotary(self, grad: Held, kept: list[Held]) -> Held:
        new, free, load = self.ledger.new, self.ledger.free, self.load
        halves = [new(ACTIVATION_GRADIENTS, load.projection_bytes // 2) for _ in range(4)]
        free(halves[0], halves[1], grad, *kept)
        grad = new(ACTIVATION_GRADIENTS, load.projection_bytes)
        free(*halves)
        return self.copy(grad)

    def linear_from_stream(self, grad: Held, layer: _Linear) -> Held:
        """A linear layer whose output is added to the residual stream: the stream keeps the same gradient."""
        if not self.load.low:
            return self.linear(grad, layer, keeps_grad=True)
        return self.linear(self.ledger.new(ACTIVATION_GRADIENTS, self.load.projection_bytes), layer)

    def add(self, one: Held, other: Held) -> Held:
        total = self.ledger.new(ACTIVATION_GRADIENTS, self.load.stream_bytes)
        self.ledger.free(one, other)
        return total

    def copy(self, grad: Held) -> Held:
        return self.cast(grad, grad.n_bytes)

    def cast(self, grad: Held, n_bytes: int) -> Held:
        other = self.ledger.new(ACTIVATION_GRADIENTS, n_bytes)
        self.ledger.free(grad)
        return other


def _without_shared(layer: _Linear, load: Workload) -> _Linear:
    """In fp32, q, k and v (or w1 and w3) keep one input between them; the first in forward order frees it last."""
    kept = layer.kept if load.low else []
    return _Linear(layer.numel, layer.input_bytes, kept, layer.casts_input)
