"""Shapes of the FSDP workshop's two models, and their parameter counts by formula. Imports nothing heavy.

Source: KAUST's workshop on distributed training (kaust-rccl/Dist-DL-training, folder fsdp) and, for BLOOM, the config
of bigscience/bloom-560m.
"""

from dataclasses import dataclass


def _check(sizes: tuple[int, ...], hidden_size: int, heads: int) -> None:
    if min(sizes) < 1:
        raise ValueError(f"every size of a model must be at least 1: {sizes}")
    if hidden_size % heads:
        raise ValueError(f"num_heads: {heads}: expected a divisor of hidden_size {hidden_size}")


@dataclass(frozen=True)
class BloomShape:
    """A BLOOM model: pre-norm blocks with ALiBi, feed-forward of 4 x hidden_size, the head tied to the embedding."""

    hidden_size: int
    num_layers: int
    num_heads: int
    vocab_size: int

    def __post_init__(self) -> None:
        _check((self.hidden_size, self.num_layers, self.num_heads, self.vocab_size), self.hidden_size, self.num_heads)

    @property
    def block_parameters(self) -> int:
        """Parameters of one block: matrices 12 d², their biases 9 d, two norms 4 d."""
        return 12 * self.hidden_size**2 + 13 * self.hidden_size

    @property
    def parameters(self) -> int:
        """Parameters of the model, the tied matrix counted once; two norms are outside the blocks."""
        return self.hidden_size * (self.vocab_size + 4) + self.num_layers * self.block_parameters


@dataclass(frozen=True)
class SimpleGptShape:
    """Sizes of the workshop's SimpleGPTModel (see models.simple_gpt).

    ffn: width inside the feed-forward. tied: the head uses the embedding's matrix; its bias is its own in either case.
    Raises ValueError if a size is below 1 or num_heads does not divide hidden_size.
    """

    vocab_size: int = 50_000
    hidden_size: int = 2048
    num_layers: int = 3
    num_heads: int = 16
    ffn: int = 8192
    tied: bool = True

    def __post_init__(self) -> None:
        sizes = (self.vocab_size, self.hidden_size, self.num_layers, self.num_heads, self.ffn)
        _check(sizes, self.hidden_size, self.num_heads)

    @property
    def block_parameters(self) -> int:
        """Parameters of one encoder layer: attention 4 d² + 4 d, feed-forward 2 d f + f + d, two norms 4 d."""
        width, inner = self.hidden_size, self.ffn
        return 4 * width**2 + 9 * width + 2 * width * inner + inner

    @property
    def head_parameters(self) -> int:
        """Parameters of the head's matrix and bias, whether or not the matrix is tied."""
        return self.vocab_size * (self.hidden_size + 1)

    @property
    def parameters(self) -> int:
        """Parameters of the model, a tied matrix counted once."""
        embedding = 0 if self.tied else self.vocab_size * self.hidden_size
        return embedding + self.head_parameters + self.num_layers * self.block_parameters


# Allowed values of `model_name`. bloom-tiny and bloom-micro are ours, for machines without a GPU.
BLOOM: dict[str, BloomShape] = {
    "bigscience/bloom-560m": BloomShape(1024, 24, 16, 250_880),
    "bloom-micro": BloomShape(64, 2, 4, 2_000),
    "bloom-tiny": BloomShape(16, 1, 2, 512),
}
# VOCAB_SIZE in the workshop's scripts, whatever is exported: the size of BLOOM's tokenizer. BLOOM's embedding is padded
# beyond it.
BLOOM_TOKENIZER_VOCABULARY = 250_680
