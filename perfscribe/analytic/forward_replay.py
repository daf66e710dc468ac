"""Replays the allocations of a forward pass of models.transformer.Model on a ledger.

Each method stands for the module or function of the same name, and frees a tensor where CPython's frames let go of it.
What autograd's graph keeps is handed to backward_replay in the small records below.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfscribe.analytic.ledger import Held, Ledger
from perfscribe.analytic.workload import Workload

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
LOSS = "loss and its scalars"
TEMPORARIES = "temporaries"

SCALAR_BYTES = 4


@dataclass
class SavedLinear:
    """A linear layer: kept are its input (which other layers may share) and autocast's copy of the weight."""

    weight_elements: int
    input_bytes: int  # in the compute dtype
    kept: list[Held]
    casts_input: bool


@dataclass
class SavedNorm:
    """An RMSNorm."""

    x: Held
    normed: Held
    inverse_rms: Held


@dataclass
class SavedAttention:
    """Self-attention: the linear layers, and the operands of its two products."""

    q: SavedLinear
    k: SavedLinear
    v: SavedLinear
    o: SavedLinear
    q_tables: list[Held]
    k_tables: list[Held]
    scaled_q: Held
    rotated_k: Held
    contiguous_v: Held
    weights: list[Held]  # under CUDA autocast in fp32 and in low precision


@dataclass
class SavedFeedForward:
    """SwiGLU: the linear layers, and the operands of silu(gate) · value."""

    w1: SavedLinear
    w2: SavedLinear
    w3: SavedLinear
    gate: Held
    silu: Held
    value: Held


@dataclass
class SavedBlock:
    """One layer."""

    attention_norm: SavedNorm
    attention: SavedAttention
    feed_forward_norm: SavedNorm
    feed_forward: SavedFeedForward


class Forward:
    """A forward pass, within autocast if the workload asks for it.

    keep: gradients are enabled, so that what the backward pass needs stays.
    """

    def __init__(self, load: Workload, ledger: Ledger, *, keep: bool) -> None:
        self.load = load
        self.ledger = ledger
        self.keep = keep
        self.blocks: list[SavedBlock] = []

    def model(self) -> Held:
        """From tokens to logits, which are given back alive."""
        shape = self.load.shape
        x = self.ledger.new(RESIDUAL, self.load.stream_bytes)
        for _ in range(shape.layers):
            x = self.block(x)
        self.last_norm, normed = self.norm(x)
        self.head, logits = self.linear(normed, shape.d_model, shape.vocab_size, LOGITS)
        self.drop_norm_output(normed)
        self.drop(x)
        return logits

    def cross_entropy(self, logits: Held) -> None:
        """Log-softmax in fp32, then the loss; the logits die with the call."""
        new, load = self.ledger.new, self.load
        copies = []
        if load.low and not load.half_to_float_kernel:
            copies = [new(TEMPORARIES, 4 * load.logit_elements)]
        self.log_softmax = new(LOG_SOFTMAX, 4 * load.logit_elements)
        self.loss = new(LOSS, SCALAR_BYTES)
        self.target_weight = new(LOSS, SCALAR_BYTES)
        self.ledger.free(*copies, logits)

    def block(self, x: Held) -> Held:
        """From one tensor of the residual stream to the next."""
        new, free, stream_bytes = self.ledger.new, self.ledger.free, self.load.stream_bytes
        attention_norm, normed = self.norm(x)
        attention, y = self.attention(normed)
        self.drop_norm_output(normed)
        middle = new(RESIDUAL, stream_bytes)
        free(y)
        feed_forward_norm, normed = self.norm(middle)
        feed_forward, y = self.feed_forward(normed)
        self.drop_norm_output(normed)
        out = new(RESIDUAL, stream_bytes)
        free(y)
        self.drop(middle, x)
        self.blocks.append(SavedBlock(attention_norm, attention, feed_forward_norm, feed_forward))
        return out

    def norm(self, x: Held) -> tuple[SavedNorm, Held]:
        """RMSNorm, in fp32."""
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
        self.drop(normed, inverse_rms)
        return SavedNorm(x, normed, inverse_rms), out

    def linear(
        self, x: Held, n_in: int, n_out: int, item: str, *, casts_input: bool = True
    ) -> tuple[SavedLinear, Held]:
        """A linear layer; autocast copies the weight (once, into its cache) and an fp32 input (each time)."""
        new, load = self.ledger.new, self.load
        kept = [x]
        if load.low:
            # without a graph the copy lives in autocast's cache until autocast is left, after the peak
            weight = new(WEIGHT_COPIES, 2 * n_in * n_out)
            kept = [weight, new(INPUTS, 2 * load.tokens * n_in) if casts_input else x]
        out = new(item, load.width_bytes * load.tokens * n_out)
        if load.low and casts_input:
            self.drop(kept[1])
        saved = SavedLinear(n_in * n_out, load.width_bytes * load.tokens * n_in, kept, load.low and casts_input)
        return saved, out

    def attention(self, x: Held) -> tuple[SavedAttention, Held]:
        """Projections, rotary embedding, attention, output projection."""
        new, free, width = self.ledger.new, self.ledger.free, self.load.shape.d_model
        q_linear, q = self.linear(x, width, width, TEMPORARIES)
        q_tables, q = self.rotary(q)
        k_linear, k = self.linear(x, width, width, TEMPORARIES)
        k_tables, k = self.rotary(k)
        v_linear, v = self.linear(x, width, width, QKV)
        scaled_q, contiguous_v, weights, out = self.scaled_dot_product_attention(v)
        # heads are merged by a copy, unless there is just one
        merged = new(MERGED, self.load.projection_bytes) if self.load.shape.heads > 1 else out
        o_linear, projected = self.linear(merged, width, width, TEMPORARIES, casts_input=False)
        self.drop(merged, k, contiguous_v)
        free(q)
        if contiguous_v is not v:
            free(v)
        if merged is not out:
            free(out)
        saved = SavedAttention(
            q_linear, k_linear, v_linear, o_linear, q_tables, k_tables, scaled_q, k, contiguous_v, weights
        )
        return saved, projected

    def rotary(self, x: Held) -> tuple[list[Held], Held]:
        """Rotary embedding of q or k: two products for each half, then both halves in one tensor."""
        new, free, load = self.ledger.new, self.ledger.free, self.load
        table_bytes = load.seq_len * load.shape.head_dim  # two bytes for each pair of numbers
        tables = [new(ROPE, table_bytes), new(ROPE, table_bytes)] if load.low else []
        halves = []
        for _ in range(2):
            products = [new(TEMPORARIES, load.projection_bytes // 2) for _ in range(2)]
            halves.append(new(TEMPORARIES, load.projection_bytes // 2))
            free(*products)
        out = new(QKV, load.projection_bytes)
        free(*halves, x)
        self.drop(*tables)
        return tables, out

    def scaled_dot_product_attention(self, v: Held) -> tuple[Held, Held, list[Held], Held]:
        """Scores, mask, softmax, product; gives back scaled q, contiguous v, the softmax and the output."""
        new, free, load = self.ledger.new, self.ledger.free, self.load
        split_heads = load.shape.heads > 1
        scaled_q = new(QKV, load.projection_bytes)
        scores = new(SCORES, load.width_bytes * load.score_elements)
        self.drop(scaled_q)
        masked = new(SCORES, load.width_bytes * load.score_elements)
        free(scores)
        weights = self.softmax(masked)
        # bmm wants (batch·heads, n, c) without gaps: v, a transposed view, is copied unless one of the two is 1
        contiguous_v = new(QKV, load.projection_bytes) if load.batch > 1 and split_heads else v
        out = new(TEMPORARIES if split_heads else MERGED, load.projection_bytes)
        if contiguous_v is not v:
            self.drop(contiguous_v)
        self.drop(*weights)
        return scaled_q, contiguous_v, weights, out

    def softmax(self, masked: Held) -> list[Held]:
        """Softmax of the masked scores, which die; under CUDA autocast in fp32 and then copied to low precision."""
        new, free, load = self.ledger.new, self.ledger.free, self.load
        if not load.softmax_in_fp32:
            weights = [new(WEIGHTS, load.width_bytes * load.score_elements)]
            free(masked)
            return weights
        copies = [] if load.half_to_float_kernel else [new(SCORES, 4 * load.score_elements)]
        weights = [new(WEIGHTS, 4 * load.score_elements)]
        free(*copies, masked)
        return [*weights, new(WEIGHTS, 2 * load.score_elements)]

    def feed_forward(self, x: Held) -> tuple[SavedFeedForward, Held]:
        """SwiGLU."""
        new, load = self.ledger.new, self.load
        width, inner = load.shape.d_model, load.shape.d_ff
        w1, gate = self.linear(x, width, inner, FEED_FORWARD)
        silu = new(FEED_FORWARD, load.inner_bytes)
        self.drop(gate)
        w3, value = self.linear(x, width, inner, FEED_FORWARD)
        product = new(FEED_FORWARD, load.inner_bytes)
        self.drop(silu, value)
        w2, out = self.linear(product, inner, width, TEMPORARIES, casts_input=False)
        self.drop(product)
        return SavedFeedForward(w1, w2, w3, gate, silu, value), out

    def drop(self, *tensors: Held) -> None:
        """No frame refers to them any more; they stay alive only if the graph keeps them."""
        if not self.keep:
            self.ledger.free(*tensors)

    def drop_norm_output(self, out: Held) -> None:
        """Under autocast the linear layers have copies of their own and the fp32 tensor goes in any case."""
        if self.load.low or not self.keep:
            self.ledger.free(out)
