"""Batches of random token ids, generated once and read by every experiment that trains the language model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.atomic import replacing
from perfscribe.base.cells import Cell
from perfscribe.instruments import precision

if TYPE_CHECKING:
    import numpy as np

FILE = "tokens.npy"
VOCABULARY = next(iter(SIZES.values())).vocab_size  # the same for all sizes
# One data set serves all smaller batches and contexts, so that a new length does not make the others stale.
LEAST_SEQUENCES, LEAST_CONTEXT = 16, 4096


def _power_of_two(least: int, wanted: int) -> int:
    return max(least, 1 << (wanted - 1).bit_length())


def dataset_name(batch: int, context: int) -> str:
    """Return tokens_{sequences}x{context}, each rounded up to a power of two, at least 16 and 4096, to share sets."""
    return f"tokens_{_power_of_two(LEAST_SEQUENCES, batch)}x{_power_of_two(LEAST_CONTEXT, context)}"


def datasets(batches: Iterable[int], contexts: Iterable[int], seed: int) -> dict[str, dict[str, Any]]:
    """Return what to plan, by name, for every batch size and context, as an experiment's datasets(config) does."""
    return {
        dataset_name(batch, context): {
            "kind": "tokens",
            "parameters": {
                "sequences": _power_of_two(LEAST_SEQUENCES, batch),
                "length": _power_of_two(LEAST_CONTEXT, context) + 1,
                "vocab_size": VOCABULARY,
                "seed": seed,
            },
            "files": [FILE],
        }
        for batch, context in itertools.product(batches, contexts)
    }


def of_section(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the data sets of an experiment's section with one batch size and several context lengths."""
    return datasets([config["batch"]], config["seq_len"], config["seed"])


def cell(factors: Mapping[str, Any], cost: float) -> Cell:
    """Return a cell that runs the language model on one device; factors contain batch, seq_len, device and dtype."""
    requires = precision.requires(factors["device"], factors["dtype"])
    return Cell(factors, requires, cost, (dataset_name(factors["batch"], factors["seq_len"]),))


def arrays(sequences: int, length: int, vocab_size: int, seed: int) -> Mapping[str, np.ndarray]:
    """Return uniform random ids, int32 (sequences, length); the same on every platform (PCG64)."""
    import numpy as np

    generator = np.random.Generator(np.random.PCG64(seed))
    return {"tokens": generator.integers(vocab_size, size=(sequences, length), dtype=np.int32)}


def generate(plan: Mapping[str, Any], folder: Path) -> tuple[list[str], Mapping[str, np.ndarray]]:
    """Write the arrays of plan["parameters"] below the folder; returns its files and the arrays."""
    import numpy as np

    content = arrays(**plan["parameters"])
    with replacing(folder / FILE) as temporary, temporary.open("wb") as stream:
        np.save(stream, content["tokens"], allow_pickle=False)
    return [FILE], content


def read(folder: Path, batch: int, context: int) -> np.ndarray:
    """Return the first `batch` sequences of context + 1 ids, int64 (batch, context + 1)."""
    import numpy as np

    held = np.load(folder / dataset_name(batch, context) / FILE, mmap_mode="r", allow_pickle=False)
    return np.array(held[:batch, : context + 1], dtype=np.int64)
