"""Numbers of parameters, in the order in which the models register their tensors."""

from perfscribe.analytic.shapes import Shape


def transformer_tensors(shape: Shape) -> list[int]:
    """Return the elements of models.transformer.Model's 9·layers + 3 parameter tensors, in registration order."""
    width, inner = shape.d_model, shape.d_ff
    block = [width, *[width * width] * 4, width, *[width * inner] * 3]
    return [shape.vocab_size * width, *block * shape.layers, width, shape.vocab_size * width]


def transformer_parameters(shape: Shape) -> int:
    """Return 2·V·d + L·(4·d² + 3·d·d_ff + 2·d) + d: embedding and untied head, blocks, last norm."""
    return sum(transformer_tensors(shape))


def transformer_matmul_parameters(shape: Shape) -> int:
    """Return the number of parameters in matrix products: all except the embedding (a look-up) and the norms."""
    width, inner = shape.d_model, shape.d_ff
    return shape.layers * (4 * width * width + 3 * width * inner) + shape.vocab_size * width
