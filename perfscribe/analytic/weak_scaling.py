"""Work per GPU of the FSDP workshop's trainings, and the workshop's scaling factors; no torch.

FLOP are the exact matrix products of a training step (a multiply-add is two, backward is twice forward); the causal
mask saves nothing, as in analytic.flops.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfscribe.analytic.workshop_shapes import BloomShape, SimpleGptShape

PRODUCTS_PER_STEP = 3  # a forward pass and the two gradients of each of its products
SOURCE, SAME_MODEL, DEEPER = "source", "same model", "deeper, equal work"
VARIANTS = (SOURCE, SAME_MODEL, DEEPER)


def layer_products(shape: SimpleGptShape | BloomShape, seq_len: int) -> int:
    """Return multiply-adds per token of one layer: its matrices, and attention over seq_len positions."""
    width = shape.hidden_size
    inner = shape.ffn if isinstance(shape, SimpleGptShape) else 4 * width
    return 4 * width * width + 2 * width * inner + 2 * seq_len * width


def head_products(shape: SimpleGptShape | BloomShape) -> int:
    """Return multiply-adds per token of the head; the embedding is a look-up and has none."""
    return shape.vocab_size * shape.hidden_size


def step_flop(shape: SimpleGptShape | BloomShape, tokens: int, seq_len: int) -> int:
    """Return the FLOP of forward and backward over `tokens` tokens in sequences of seq_len."""
    products = shape.num_layers * layer_products(shape, seq_len) + head_products(shape)
    return PRODUCTS_PER_STEP * 2 * tokens * products


def head_in_layers(shape: SimpleGptShape, seq_len: int) -> float:
    """Return the work of the head in units of one layer's."""
    return head_products(shape) / layer_products(shape, seq_len)


@dataclass(frozen=True)
class Setup:
    """One row of a weak-scaling table. world_size: GPUs; batch: sequences per GPU and step."""

    variant: str
    world_size: int
    batch: int
    shape: SimpleGptShape
    seq_len: int

    @property
    def total_batch(self) -> int:
        """Sequences of all GPUs per step."""
        return self.batch * self.world_size

    @property
    def tokens_per_gpu(self) -> int:
        """Tokens per GPU and step."""
        return self.batch * self.seq_len

    @property
    def flop_per_gpu(self) -> int:
        """FLOP per GPU and step."""
        return step_flop(self.shape, self.tokens_per_gpu, self.seq_len)

    @property
    def parameters_per_gpu(self) -> float:
        """Parameters per GPU if they are sharded."""
        return self.shape.parameters / self.world_size


def setups(
    shape: SimpleGptShape, seq_len: int, worlds: Sequence[int], layers: Sequence[int], batches: Sequence[int]
) -> list[Setup]:
    """Return three variants: the workshop's rows; its first model and batch at every size; deeper models, equal work.

    deeper, equal work: for each of the workshop's batches the depth whose FLOP per GPU are nearest to the first row's;
    half the batch needs more than twice the layers, as the head does not double. Raises ValueError if the lists differ
    in length.
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
    """Return the weak-scaling efficiency T_base / T_current, in percent; 100 means no loss."""
    return 100 * base_s / current_s


def inverted_percent(base_s: float, current_s: float) -> float:
    """Return what the workshop prints as efficiency: T_current / T_base, in percent, which grows with losses."""
    return efficiency_percent(current_s, base_s)


def scale_factors(base_rate: float, rate: float, base_s: float, current_s: float) -> tuple[float, float]:
    """Return the workshop's scale factors (never defined there): samples/s(N) / samples/s(1), runtime(1) / runtime(N).

    They differ if the runtime includes more than training steps, or rows do not divide evenly among ranks.
    """
    return rate / base_rate, base_s / current_s
