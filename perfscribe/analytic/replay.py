"""Predicts memory without tensors: replays the allocations of models.transformer.Model's passes on a ledger.

A method stands for the module or function of the same name, frees a tensor when CPython's frames release it, and
returns its output and its backward pass (output's gradient to input's); model() and cross_entropy() keep theirs for
backward(). Backward passes run in autograd's order in PyTorch 2.11 to 2.13, outside autocast. Not replayed: temporaries
of one number per token inside RMSNorm's backward.
"""

from collections.abc import Callable, Sequence
from functools import partial

from perfscribe.analytic.ledger import Held, Ledger
from perfscribe.analytic.workload import Workload

# Items of the transformer's memory, printed in reports.
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
GRADIENTS = "parameter gradients"
ACTIVATION_GRADIENTS = "gradients of activations"

SCALAR_BYTES = 4

Backward = Callable[..., Held]
Layer = Callable[[Held], tuple[Held, Backward]]
OfThree = Callable[[Held], tuple[Held, Held, Held]]


class Replay:
    """One forward pass, in autocast if the workload asks for it, and its backward pass.

    keep: gradients are enabled, so tensors that backward needs stay alive.
    """

    def __init__(self, load: Workload, ledger: Ledger, *, keep: bool) -> None:
        self.load = load
        self.ledger = ledger
        self.keep = keep
        self._backs: list[Backward] = []
        self._copies: list[Held] = []  # of weights, in autocast's cache only

    def model(self, block_size: float | None = None) -> Held:
        """Run the forward pass from tokens to logits, which are returned alive.

        block_size: layers that backward recomputes as one, 0.5 for attention and feed-forward apart; None: no layer.
        """
        shape = self.load.shape
        x = self.ledger.new(RESIDUAL, self.load.stream_bytes)
        for layer in self._layers(block_size):
            before = x
            x, back = layer(before)
            self._drop(before)
            self._backs.append(back)
        normed, norm = self._norm(x)
        logits, head = self._linear(normed, shape.d_model, shape.vocab_size, LOGITS)
        self._drop_norm_output(normed)
        self._drop(x)
        self._backs += [norm, head]
        return logits

    def cross_entropy(self, logits: Held) -> Held:
        """Compute log-softmax in fp32 and return the loss; the logits are freed."""
        new, free, load = self.ledger.new, self.ledger.free, self.load
        casts = load.low and not load.half_to_float_kernel
        copies = [new(TEMPORARIES, 4 * load.logit_elements)] if casts else []
        log_softmax = new(LOG_SOFTMAX, 4 * load.logit_elements)
        loss, target_weight = new(LOSS, SCALAR_BYTES), new(LOSS, SCALAR_BYTES)
        free(*copies, logits)

        def back() -> Held:
            of_log_softmax = self._grad(4 * load.logit_elements)
            free(target_weight)
            of_logits = self._grad((4 if casts else load.width_bytes) * load.logit_elements)
            free(of_log_softmax, log_softmax)
            return self._exchange(of_logits, 2 * load.logit_elements) if casts else of_logits

        self._backs.append(back)
        return loss

    def backward(self) -> None:
        """Run backward from the loss to the gradients of all parameters; none exist before."""
        self.ledger.free(*self._copies)  # autocast has ended
        of_loss = self.ledger.new(LOSS, SCALAR_BYTES)
        grad = self._backs.pop()()
        while self._backs:
            grad = self._backs.pop()(grad)
        shape = self.load.shape
        self.ledger.new(GRADIENTS, 4 * shape.vocab_size * shape.d_model)  # embedding's gradient, dense
        self.ledger.free(grad, of_loss)

    def _layers(self, block_size: float | None) -> Sequence[Layer]:
        """Return the layers to run: the blocks, or the parts that backward recomputes (groups of blocks, or halves)."""
        blocks: list[Layer] = [self.block] * self.load.shape.layers
        if block_size is None:
            return blocks
        if block_size < 1:
            halves = [partial(self._half, layer) for layer in (self._attention, self._feed_forward)]
            return [partial(self._checkpoint, [half]) for half in halves] * len(blocks)
        size = int(block_size)
        return [partial(self._checkpoint, blocks[at : at + size]) for at in range(0, len(blocks), size)]

    def _checkpoint(self, layers: Sequence[Layer], x: Held) -> tuple[Held, Backward]:
        """Replay layers of which only x is kept; backward runs them again first, keeping what each needs."""
        self.keep, out = False, x
        for layer in layers:
            before = out
            out, _ = layer(before)
            self.ledger.free(*[before] * (before is not x))
        self.keep = True

        def back(of_out: Held) -> Held:
            recomputed, backs = x, []
            for layer in layers:
                recomputed, of_layer = layer(recomputed)
                backs.append(of_layer)
            self.ledger.free(recomputed)  # recomputing ends before it
            while backs:
                of_out = backs.pop()(of_out)
            return of_out

        return out, back

    def block(self, x: Held) -> tuple[Held, Backward]:
        """Replay one block, from one tensor of the residual stream to the next; x stays alive."""
        middle, attention = self._half(self._attention, x)
        out, feed_forward = self._half(self._feed_forward, middle)
        self._drop(middle)
        return out, lambda of_out: attention(feed_forward(of_out))

    def _half(self, layer: Layer, x: Held) -> tuple[Held, Backward]:
        """Replay x + layer(norm(x)); x stays alive."""
        normed, norm = self._norm(x)
        y, back = layer(normed)
        self._drop_norm_output(normed)
        out = self.ledger.new(RESIDUAL, self.load.stream_bytes)
        self.ledger.free(y)
        return out, lambda of_out: norm(back(of_out), skip=of_out)

    def _norm(self, x: Held) -> tuple[Held, Backward]:
        """Replay RMSNorm, in fp32."""
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
        self._drop(normed, inverse_rms)

        def back(of_out: Held, skip: Held | None = None) -> Held:
            """skip: gradient of the skip connection, which is added."""
            of_normed = self._grad(load.stream_bytes)
            product = new(TEMPORARIES, load.stream_bytes)
            new(GRADIENTS, 4 * load.shape.d_model)
            free(product, of_out, normed)
            of_x = self._grad(load.stream_bytes)
            free(new(TEMPORARIES, load.stream_bytes), of_normed)
            if skip:
                of_x = self._add(skip, of_x)
            free(inverse_rms)
            factors = [new(TEMPORARIES, load.stream_bytes) for _ in range(3)]  # gradient of the mean, x¹, 2·x¹
            of_square = self._grad(load.stream_bytes)
            free(*factors, x)
            return self._add(of_x, of_square)

        return out, back

    def _linear(self, x: Held, n_in: int, n_out: int, item: str, *, casts_input: bool = True) -> tuple[Held, Backward]:
        """Replay a linear layer; autocast copies the weight (once, into its cache) and an fp32 input (each time)."""
        new, free, load = self.ledger.new, self.ledger.free, self.load
        input_bytes = load.width_bytes * load.tokens * n_in
        casts = load.low and casts_input
        kept = [x]
        if load.low:
            weight = new(WEIGHT_COPIES, 2 * n_in * n_out)
            if not self.keep:  # the copy stays in autocast's cache until autocast ends
                self._copies.append(weight)
            kept = [weight, new(INPUTS, input_bytes) if casts else x]
        out = new(item, load.width_bytes * load.tokens * n_out)
        if casts:
            self._drop(kept[1])

        def back(of_out: Held, *, keeps_of_out: bool = False, shared: bool = False) -> Held:
            """shared: an earlier layer has the same input, which in fp32 is kept until that layer's backward."""
            of_weight = new(TEMPORARIES if load.low else GRADIENTS, load.width_bytes * n_in * n_out)
            of_x = self._grad(input_bytes)
            if not keeps_of_out:
                free(of_out)
            if load.low or not shared:
                free(*kept)
            if casts:
                of_x = self._exchange(of_x, 2 * input_bytes)
            if load.low:  # autocast's low-precision gradients are cast back to fp32
                new(GRADIENTS, 4 * n_in * n_out)
                free(of_weight)
            return of_x

        return out, back

    def _into_stream(self, of_stream: Held, layer: Backward) -> Held:
        """Run the backward of a layer that adds to the stream; of_stream stays alive, for the skip connection."""
        if not self.load.low:
            return layer(of_stream, keeps_of_out=True)
        return layer(self._grad(self.load.projection_bytes))

    def _attention(self, x: Held) -> tuple[Held, Backward]:
        """Replay projections, rotary embedding, attention and output projection."""
        new, free, load, width = self.ledger.new, self.ledger.free, self.load, self.load.shape.d_model
        q, of_q_linear = self._linear(x, width, width, TEMPORARIES)
        q, of_q_rotary = self._rotary(q)
        k, of_k_linear = self._linear(x, width, width, TEMPORARIES)
        k, of_k_rotary = self._rotary(k)
        v, of_v_linear = self._linear(x, width, width, QKV)
        out, contiguous_v, of_product = self._scaled_dot_product_attention(k, v)
        # merging heads copies, unless there is only one
        several = load.shape.heads > 1
        merged = new(MERGED, load.projection_bytes) if several else out
        projected, of_o_linear = self._linear(merged, width, width, TEMPORARIES, casts_input=False)
        self._drop(merged, k, contiguous_v)
        free(q)
        if contiguous_v is not v:
            free(v)
        if several:
            free(out)

        def back(of_stream: Held) -> Held:
            of_out = self._into_stream(of_stream, of_o_linear)
            if several:
                of_out = self._exchange(of_out, load.projection_bytes)  # back into heads
            of_q, of_k, of_v = of_product(of_out)
            of_x = of_v_linear(self._exchange(of_v, load.projection_bytes), shared=True)
            of_x = self._add(of_x, of_k_linear(of_k_rotary(of_k), shared=True))
            return self._add(of_x, of_q_linear(of_q_rotary(of_q)))

        return projected, back

    def _rotary(self, x: Held) -> tuple[Held, Backward]:
        """Replay the rotary embedding of q or k: two products for each half, then both halves in one tensor."""
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
        self._drop(*tables)

        def back(of_out: Held) -> Held:
            """Four products, summed to two halves, joined, and copied out of the heads."""
            halves = [self._grad(load.projection_bytes // 2) for _ in range(4)]
            free(*halves[2:], of_out, *tables)
            of_x = self._grad(load.projection_bytes)
            free(*halves)
            return self._exchange(of_x, load.projection_bytes)

        return out, back

    def _scaled_dot_product_attention(self, k: Held, v: Held) -> tuple[Held, Held, OfThree]:
        """Replay scores, mask, softmax and product; returns the output, contiguous v, and the backward to q, k, v."""
        new, free, load = self.ledger.new, self.ledger.free, self.load
        several = load.shape.heads > 1
        scaled_q = new(QKV, load.projection_bytes)
        scores = new(SCORES, load.width_bytes * load.score_elements)
        self._drop(scaled_q)
        masked = new(SCORES, load.width_bytes * load.score_elements)
        free(scores)
        weights, of_softmax = self._softmax(masked)
        # bmm needs (batch·heads, n, c) without gaps: v, a transposed view, is copied unless batch or heads is 1
        contiguous_v = new(QKV, load.projection_bytes) if load.batch > 1 and several else v
        out = new(TEMPORARIES if several else MERGED, load.projection_bytes)
        if contiguous_v is not v:
            self._drop(contiguous_v)
        self._drop(*weights)

        def back(of_out: Held) -> tuple[Held, Held, Held]:
            of_v = self._grad(load.projection_bytes)
            of_weights = self._grad(load.width_bytes * load.score_elements)
            free(of_out, contiguous_v)
            of_scores = self._exchange(of_softmax(of_weights), load.width_bytes * load.score_elements)  # mask
            of_k, of_scaled_q = self._grad(load.projection_bytes), self._grad(load.projection_bytes)
            free(of_scores, k, scaled_q)
            return self._exchange(of_scaled_q, load.projection_bytes), of_k, of_v

        return out, contiguous_v, back

    def _softmax(self, masked: Held) -> tuple[list[Held], Backward]:
        """Replay softmax, which frees masked; return the weights: under CUDA autocast fp32 and a low-precision copy."""
        new, free, load = self.ledger.new, self.ledger.free, self.load
        own_bytes, fp32_bytes = load.width_bytes * load.score_elements, 4 * load.score_elements
        in_fp32 = load.softmax_in_fp32
        casts = in_fp32 and not load.half_to_float_kernel
        copies = [new(SCORES, fp32_bytes)] if casts else []
        weights = [new(WEIGHTS, fp32_bytes if in_fp32 else own_bytes)]
        free(*copies, masked)
        if in_fp32:
            weights.append(new(WEIGHTS, own_bytes))

        def back(of_weights: Held) -> Held:
            if in_fp32:
                free(weights[1])
                of_weights = self._exchange(of_weights, fp32_bytes)
            of_masked = self._grad(fp32_bytes if casts else own_bytes)
            if load.device == "cuda":  # softmax_backward_cuda_out first multiplies gradient and output
                free(new(TEMPORARIES, fp32_bytes if in_fp32 else own_bytes))
            free(of_weights, weights[0])
            return self._exchange(of_masked, own_bytes) if casts else of_masked

        return weights, back

    def _feed_forward(self, x: Held) -> tuple[Held, Backward]:
        """Replay SwiGLU."""
        new, free, load = self.ledger.new, self.ledger.free, self.load
        width, inner, inner_bytes = load.shape.d_model, load.shape.d_ff, load.inner_bytes
        gate, w1 = self._linear(x, width, inner, FEED_FORWARD)
        silu = new(FEED_FORWARD, inner_bytes)
        self._drop(gate)
        value, w3 = self._linear(x, width, inner, FEED_FORWARD)
        product = new(FEED_FORWARD, inner_bytes)
        self._drop(silu, value)
        out, w2 = self._linear(product, inner, width, TEMPORARIES, casts_input=False)
        self._drop(product)

        def back(of_stream: Held) -> Held:
            of_product = self._into_stream(of_stream, w2)
            of_silu, of_value = self._grad(inner_bytes), self._grad(inner_bytes)
            free(of_product, value, silu)
            of_x = w3(of_value, shared=True)
            of_gate = self._grad(inner_bytes)
            free(of_silu, gate)
            return self._add(of_x, w1(of_gate))

        return out, back

    def _drop(self, *tensors: Held) -> None:
        """Release tensors that no frame refers to any more; they stay alive only if the graph keeps them."""
        if not self.keep:
            self.ledger.free(*tensors)

    def _drop_norm_output(self, out: Held) -> None:
        """Release a norm's output: under autocast always, because the linear layers keep low-precision copies."""
        if self.load.low or not self.keep:
            self.ledger.free(out)

    def _grad(self, n_bytes: int) -> Held:
        return self.ledger.new(ACTIVATION_GRADIENTS, n_bytes)

    def _add(self, first: Held, second: Held) -> Held:
        """Sum two gradients of the residual stream's size, which are freed."""
        total = self._grad(self.load.stream_bytes)
        self.ledger.free(first, second)
        return total

    def _exchange(self, old: Held, n_bytes: int) -> Held:
        """Allocate a gradient computed from another one, which is then freed."""
        new = self._grad(n_bytes)
        self.ledger.free(old)
        return new
