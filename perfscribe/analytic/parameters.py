"""Numbers of parameters, in the order in which the models register their tensors."""

from __future__ import annotations

from perfscribe.analytic.shapes import Seq2SeqShape, Shape


def transformer_tensors(shape: Shape) -> list[int]:
    """Elements of every parameter tensor of models.transformer.Model, in registration order; 9·layers + 3 of them."""
    width, inner = shape.d_model, shape.d_ff
    block = [width, *[width * width] * 4, width, *[width * inner] * 3]
    return [shape.vocab_size * width, *block * shape.layers, width, shape.vocab_size * width]


def transformer_parameters(shape: Shape) -> int:
    """2·V·d + L·(4·d² + 3·d·d_ff + 2·d) + d: embedding and untied head, blocks, last norm."""
    return sum(transformer_tensors(shape))


def transformer_matmul_parameters(shape: Shape) -> int:
    """Parameters that a token is multiplied with: all but the embedding (a look-up) and the norms."""
    width, inner = shape.d_model, shape.d_ff
    return shape.layers * (4 * width * width + 3 * width * inner) + shape.vocab_size * width


def seq2seq_parameters(shape: Seq2SeqShape) -> int:
    """Parameters of torch.nn.Transformer: biases everywhere, a last norm after encoder and after decoder."""
    width, inner = shape.d_model, shape.d_ff
    attention = 4 * width * width + 4 * width
    feed_forward = 2 * width * inner + inner + width
    norm = 2 * width
    encoder = shape.encoder_layers * (attention + feed_forward + 2 * norm) + norm
    decoder = shape.decoder_layers * (2 * attention + feed_forward + 3 * norm) + norm
    return encoder + decoder
