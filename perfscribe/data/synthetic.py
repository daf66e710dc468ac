"""The synthetic source and target sequences of the Polaris homework, and a digest of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np


def arrays(samples: int, source_length: int, target_length: int, features: int, seed: int) -> dict[str, np.ndarray]:
    """Return uniform random float32 in (0, 1]: source and target, (samples, source_length or target_length, features).

    Identical on every platform: PCG64's stream, 24 random bits per value. Never zero: zeros would compress, and draw
    less power in a matrix product.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    shapes = {"source": (samples, source_length, features), "target": (samples, target_length, features)}
    result = {}
    for name, shape in shapes.items():
        values = generator.random(shape, dtype=np.float32)
        np.subtract(np.float32(1), values, out=values)  # exact: [0, 1) becomes (0, 1]
        result[name] = values
    return result


def digest(content: Mapping[str, np.ndarray]) -> str:
    """Return 16 hex digits of the SHA-256 of the arrays' name, dtype, shape and little-endian bytes, sorted by name."""
    whole = hashlib.sha256()
    for name in sorted(content):
        values = np.ascontiguousarray(content[name])
        values = values.astype(values.dtype.newbyteorder("<"), copy=False)
        whole.update(f"{name}\0{values.dtype.str}\0{values.shape}\0".encode())
        whole.update(values.data)
    return whole.hexdigest()[:16]
