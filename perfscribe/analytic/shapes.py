"""Shapes of the models, without torch: counters, plans and configurations read them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer language model.

    d_model: width of the residual stream.
    d_ff: inner width of the SwiGLU feed-forward block.
    layers: number of blocks.
    heads: attention heads per layer; they must divide d_model.
    vocab_size: number of tokens, the width of embedding and head.

    Raises ValueError if a width is not positive, the heads do not divide d_model, or a head's width is odd
    (rotary embedding rotates pairs).
    """

    d_model: int
    d_ff: int
    layers: int
    heads: int
    vocab_size: int = 10_000

    def __post_init__(self) -> None:
        if min(self.d_model, self.d_ff, self.layers, self.heads, self.vocab_size) < 1:
            raise ValueError(f"every size must be at least 1: {self}")
        if self.d_model % self.heads:
            raise ValueError(f"heads must divide d_model: {self.heads} does not divide {self.d_model}")
        if self.head_dim % 2:
            raise ValueError(f"the width of a head must be even: {self.d_model} / {self.heads} = {self.head_dim}")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.heads


@dataclass(frozen=True)
class Seq2SeqShape:
    """An encoder-decoder transformer (torch.nn.Transformer, with that class's defaults).

    Raises ValueError if a size is not positive or the heads do not divide d_model.
    """

    d_model: int = 512
    heads: int = 8
    encoder_layers: int = 6
    decoder_layers: int = 6
    d_ff: int = 2048

    def __post_init__(self) -> None:
        if min(self.d_model, self.heads, self.encoder_layers, self.decoder_layers, self.d_ff) < 1:
            raise ValueError(f"every size must be at least 1: {self}")
        if self.d_model % self.heads:
            raise ValueError(f"heads must divide d_model: {self.heads} does not divide {self.d_model}")


# nano, micro and mini are ours, for machines without a GPU; small to 2.7B are table 1 of the handout of Stanford CS336,
# assignment 2 (systems), version 1.0.4 of 2025, and 10B is of version 26.1.1 of 2026, which calls 2.7B xl.
SIZES: dict[str, Shape] = {
    "nano": Shape(d_model=32, d_ff=128, layers=2, heads=2),
    "micro": Shape(d_model=128, d_ff=512, layers=4, heads=2),
    "mini": Shape(d_model=256, d_ff=1024, layers=6, heads=4),
    "small": Shape(d_model=768, d_ff=3072, layers=12, heads=12),
    "medium": Shape(d_model=1024, d_ff=4096, layers=24, heads=16),
    "large": Shape(d_model=1280, d_ff=5120, layers=36, heads=20),
    "xl": Shape(d_model=1600, d_ff=6400, layers=48, heads=25),
    "2.7B": Shape(d_model=2560, d_ff=10240, layers=32, heads=32),
    "10B": Shape(d_model=4608, d_ff=12288, layers=50, heads=36),
}


@dataclass(frozen=True)
class LanguageModel:
    """Factors that a training step follows from; size: one of SIZES."""

    device: str
    dtype: str
    size: str
    batch: int
    seq_len: int


@dataclass(frozen=True)
class Attention:
    """Factors that the tensors of attention without a head axis follow from."""

    device: str
    dtype: str
    batch: int
    seq_len: int
    head_dim: int


@dataclass(frozen=True)
class Steps:
    """Factors that steps are timed by."""

    warmup_steps: int
    timed_steps: int
