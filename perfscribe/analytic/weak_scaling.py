"""What the FSDP workshop's trainings ask of each GPU, and the factors by which it judges them; no torch.

FLOP are the exact matrix products of a training step (a multiply-add is two, backward twice the forward pass), the
causal mask saving nothing, as in counters.flops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfscribe.analytic.workshop_shapes import BloomShape, SimpleGptShape

PRODUCTS_PER_STEP = 3  # a forward pass and the two gradients of each of its products
SOURCE, SAME_MODEL, DEEPER = "source", "same model", "deeper, equal work"
VARIANTS = (SOURCE, SAME_MODEL, DEEPER)


def layer_products(shape: SimpleGptShape | BloomShape, seq_len: int) -> int:
    """Multiply-adds of one layer for each token: its matrices, and attention over seq_len positions."""
    width = shape.hidden_size
    inner = shape.ffn if isinstance(shape, SimpleGptShape) else 4 * width
    return 4 * width * width + 2 * width * inner + 2 * seq_len * width


def head_products(shape: SimpleGptShape | BloomShape) -> int:
    """Multiply-adds of the head for each token; the embedding is a look-up and has none."""
    return shape.vocab_size * shape.hidden_size


def step_flop(shape: SimpleGptShape | BloomShape, tokens: int, seq_len: int) -> int:
    """Forward and backward over `tokens` tokens in sequences of seq_len."""
    products = shape.num_layers * layer_products(shape, seq_len) + head_products(shape)
    return PRODUCTS_PER_STEP * 2 * tokens * products


def head_in_layers(shape: SimpleGptShape, seq_len: int) -> float:
    """How many layers' work the head is."""
    return head_products(shape) / layer_products(shape, seq_len)


@dataclass(frozen=True)
class Setup:
    """One row of a weak scaling. world_size: GPUs; batch: sequences of each at once."""

    variant: str
    world_size: int
    batch: int
    shape: SimpleGptShape
    seq_len: int

    @property
    def total_batch(self) -> int:
        """Sequences of all GPUs at once."""
        return self.batch * self.world_size

    @property
    def tokens_per_gpu(self) -> int:
        """Tokens of one GPU in a step."""
        return self.batch * self.seq_len

    @property
    def flop_per_gpu(self) -> int:
        """FLOP of one GPU in a step."""
        return step_flop(self.shape, self.tokens_per_gpu, self.seq_len)

    @property
    def parameters_per_gpu(self) -> float:
        """Parameters that a GPU keeps where all are divided."""
        return self.shape.parameters / self.world_size


def setups(
    shape: SimpleGptShape, seq_len: int, worlds: Sequence[int], layers: Sequence[int], batches: Sequence[int]
) -> list[Setup]:
    """The workshop's rows; the first model and batch at every size; and models that grow while the work does not.

    deeper, equal work: the workshop's batches, and for each the depth whose FLOP a GPU come nearest to the first row's:
    twice the layers for half the batch are not enough, as the head does not double. ValueError: lists of different
    lengths.
    """
    if not len(worlds) == len(layers) == len(batches) > 0:
        counts = f"{len(worlds)} world sizes, {len(layers)} layers, {len(batches)} batches"
        raise ValueError(f"{counts}: expected as many of each, at least one")
    first = Setup(SOURCE, worlds[0], batches[0], replace(shape, num_layers=layers[0]), seq_len)
    asked = list(zip(worlds, layers, batches, strict=True))
    return [
        *(Setup(SOURCE, ranks, batch, replace(shape, num_layers=deep), seq_len) for ranks, deep, batch in asked),
        *(replace(first, variant=SAME_MODEL, world_size=ranks) for ranks in worlds),
        *(_deeper(first, ranks, batch) for ranks, _, batch in asked),
    ]


def _deeper(first: Setup, world_size: int, batch: int) -> Setup:
    head = head_in_layers(first.shape, first.seq_len)
    layers = round((first.shape.num_layers + head) * first.batch / batch - head)
    return Setup(DEEPER, world_size, batch, replace(first.shape, num_layers=max(1, layers)), first.seq_len)


def efficiency_percent(base_s: float, current_s: float) -> float:
    """Weak-scaling efficiency: T_base / T_current, in percent; 100 where nothing is lost."""
    return 100 * base_s / current_s


def inverted_percent(base_s: float, current_s: float) -> float:
    """What the workshop prints as efficiency: T_current / T_base, in percent, which grows where time is lost."""
    return efficiency_percent(current_s, base_s)


def scale_factors(base_rate: float, rate: float, base_s: float, current_s: float) -> tuple[float, float]:
    """The workshop's two scale factors, which it does not define: samples/s(N) / samples/s(1), runtime(1) / runtime(N).

    They differ where the runtime holds more than training steps, or rows do not divide evenly among ranks.
    """
    return rate / base_rate, base_s / current_s
