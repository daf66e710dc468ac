"""Replays the allocations of a backward pass of models.transformer.Model on the ledger of its forward pass.

Each method stands for the backward pass of the module or function of the same name, in the order in which autograd
runs it in PyTorch 2.11 to 2.13, outside autocast. Not replayed: temporaries of one number a token inside RMSNorm.
"""

from __future__ import annotations

from dataclasses import replace

from perfscribe.analytic.forward_replay import (
    LOSS,
    SCALAR_BYTES,
    TEMPORARIES,
    Forward,
    SavedAttention,
    SavedFeedForward,
    SavedLinear,
    SavedNorm,
)
from perfscribe.analytic.ledger import Held

GRADIENTS = "parameter gradients"
ACTIVATION_GRADIENTS = "gradients of activations"


class Backward:
    """The backward pass of a Forward that kept its graph and computed the loss; no gradients exist before."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.load = forward.load
        self.ledger = forward.ledger

    def model(self) -> None:
        """From the loss to the gradients of all parameters."""
        shape = self.load.shape
        of_loss = self.ledger.new(LOSS, SCALAR_BYTES)
        grad = self.linear(self.cross_entropy(), self.forward.head)
        grad = self.norm(grad, self.forward.last_norm)
        for block in reversed(self.forward.blocks):
            of_normed = self.feed_forward(grad, block.feed_forward)
            grad = self.norm(of_normed, block.feed_forward_norm, skip=grad)
            of_normed = self.attention(grad, block.attention)
            grad = self.norm(of_normed, block.attention_norm, skip=grad)
        self.ledger.new(GRADIENTS, 4 * shape.vocab_size * shape.d_model)  # of the embedding, dense
        self.ledger.free(grad, of_loss)

    def cross_entropy(self) -> Held:
        """To the gradient of the logits, in their dtype."""
        load = self.load
        of_log_softmax = self.grad(4 * load.logit_elements)
        self.ledger.free(self.forward.target_weight)
        casts = load.low and not load.half_to_float_kernel
        of_logits = self.grad((4 if casts else load.width_bytes) * load.logit_elements)
        self.ledger.free(of_log_softmax, self.forward.log_softmax)
        return self.exchange(of_logits, 2 * load.logit_elements) if casts else of_logits

    def linear(self, of_out: Held, layer: SavedLinear, *, keeps_of_out: bool = False) -> Held:
        """To the gradient of the input; autocast's low-precision gradients are cast back to fp32."""
        new, free, load = self.ledger.new, self.ledger.free, self.load
        of_weight = new(TEMPORARIES if load.low else GRADIENTS, load.width_bytes * layer.weight_elements)
        of_x = self.grad(layer.input_bytes)
        if not keeps_of_out:
            free(of_out)
        free(*layer.kept)
        if layer.casts_input:
            of_x = self.exchange(of_x, 2 * layer.input_bytes)
        if load.low:
            new(GRADIENTS, 4 * layer.weight_elements)
            free(of_weight)
        return of_x

    def linear_into_stream(self, of_stream: Held, layer: SavedLinear) -> Held:
        """A layer whose output is added to the residual stream: the skip connection needs the same gradient."""
        if not self.load.low:
            return self.linear(of_stream, layer, keeps_of_out=True)
        return self.linear(self.grad(self.load.projection_bytes), layer)

    def shared_linear(self, of_out: Held, layer: SavedLinear) -> Held:
        """A layer that ran after another one on the same input, which in fp32 is kept for that one still."""
        return self.linear(of_out, layer if self.load.low else replace(layer, kept=[]))

    def norm(self, of_out: Held, saved: SavedNorm, skip: Held | None = None) -> Held:
        """To the gradient of the input, with that of the skip connection added."""
        new, free, stream_bytes = self.ledger.new, self.ledger.free, self.load.stream_bytes
        of_normed = self.grad(stream_bytes)
        product = new(TEMPORARIES, stream_bytes)
        new(GRADIENTS, 4 * self.load.shape.d_model)
        free(product, of_out, saved.normed)
        of_x = self.grad(stream_bytes)
        product = new(TEMPORARIES, stream_bytes)
        free(product, of_normed)
        if skip:
            of_x = self.add(skip, of_x)
        free(saved.inverse_rms)
        factors = [new(TEMPORARIES, stream_bytes) for _ in range(3)]  # gradient of the mean, x¹, 2·x¹
        of_square = self.grad(stream_bytes)
        free(*factors, saved.x)
        return self.add(of_x, of_square)

    def feed_forward(self, of_stream: Held, saved: SavedFeedForward) -> Held:
        """To the gradient of SwiGLU's input."""
        free, inner_bytes = self.ledger.free, self.load.inner_bytes
        of_product = self.linear_into_stream(of_stream, saved.w2)
        of_silu, of_value = self.grad(inner_bytes), self.grad(inner_bytes)
        free(of_product, saved.value, saved.silu)
        of_x = self.shared_linear(of_value, saved.w3)
        of_gate = self.grad(inner_bytes)
        free(of_silu, saved.gate)
        return self.add(of_x, self.linear(of_gate, saved.w1))

    def attention(self, of_stream: Held, saved: SavedAttention) -> Held:
        """To the gradient of the input that q, k and v share."""
        load = self.load
        of_out = self.linear_into_stream(of_stream, saved.o)
        if load.shape.heads > 1:
            of_out = self.exchange(of_out, load.projection_bytes)  # back into heads
        of_v = self.grad(load.projection_bytes)
        of_scores = self.exchange(self.softmax(of_out, saved), load.width_bytes * load.score_elements)  # mask
        of_k, of_scaled_q = self.grad(load.projection_bytes), self.grad(load.projection_bytes)
        self.ledger.free(of_scores, saved.rotated_k, saved.scaled_q)
        of_q = self.exchange(of_scaled_q, load.projection_bytes)
        of_x = self.shared_linear(self.exchange(of_v, load.projection_bytes), saved.v)
        of_x = self.add(of_x, self.shared_linear(self.rotary(of_k, saved.k_tables), saved.k))
        return self.add(of_x, self.linear(self.rotary(of_q, saved.q_tables), saved.q))

    def softmax(self, of_out: Held, saved: SavedAttention) -> Held:
        """From the gradient of attention's output to that of the masked scores, in the compute dtype."""
        free, load = self.ledger.free, self.load
        low_bytes, fp32_bytes = 2 * load.score_elements, 4 * load.score_elements
        of_weights = self.grad(load.width_bytes * load.score_elements)
        free(of_out, saved.contiguous_v)
        if load.softmax_in_fp32:
            free(saved.weights[1])
            of_weights = self.exchange(of_weights, fp32_bytes)
        casts = load.softmax_in_fp32 and not load.half_to_float_kernel
        of_masked = self.grad(fp32_bytes if casts else load.width_bytes * load.score_elements)
        free(of_weights, saved.weights[0])
        return self.exchange(of_masked, low_bytes) if casts else of_masked

    def rotary(self, of_out: Held, tables: list[Held]) -> Held:
        """Four products, summed to two halves, joined, and copied out of the heads."""
        free, projection_bytes = self.ledger.free, self.load.projection_bytes
        halves = [self.grad(projection_bytes // 2) for _ in range(4)]
        free(*halves[2:], of_out, *tables)
        of_x = self.grad(projection_bytes)
        free(*halves)
        return self.exchange(of_x, projection_bytes)

    def add(self, one: Held, other: Held) -> Held:
        """Sum of two gradients of the residual stream's size, which die."""
        total = self.grad(self.load.stream_bytes)
        self.ledger.free(one, other)
        return total

    def exchange(self, old: Held, n_bytes: int) -> Held:
        """A gradient computed from another one, which dies then."""
        new = self.grad(n_bytes)
        self.ledger.free(old)
        return new

    def grad(self, n_bytes: int) -> Held:
        """A gradient of an activation."""
        return self.ledger.new(ACTIVATION_GRADIENTS, n_bytes)
