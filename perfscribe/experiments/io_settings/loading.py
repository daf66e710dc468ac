"""Epochs of torch's loader over one file, without anything done between its batches."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np
import torch

from perfscribe.base.cells import Cell
from perfscribe.data.layout import ARRAY_NAMES
from perfscribe.experiments.io_settings.source import Source


class Loading:
    """A loader whose workers, if any, live as long as it does, each with the file opened by itself."""

    def __init__(self, source: Source, cell: Cell, workers: int, threads: int) -> None:
        self._order = source.indices(cell["epoch_samples"])
        self._dataset = source.samples(cell["reader"], threads)
        self._name = f"{source.path.name} by {cell['reader']}"
        dataset: Any = self._dataset  # torch asks for its own base class, but only calls what a map-style data set has
        self._loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            dataset,
            batch_size=cell["batch"],
            sampler=self._order,
            num_workers=workers,
            persistent_workers=workers > 0,
            multiprocessing_context="fork" if workers else None,
        )

    def check(self, arrays: Mapping[str, np.ndarray]) -> float:
        """An epoch whose samples are compared bit by bit; ms until its first batch. ValueError names what differs."""
        start, first_ms, seen = perf_counter(), 0.0, 0
        for batch in self._loader:
            first_ms = first_ms or (perf_counter() - start) * 1e3
            wanted = self._order[seen : seen + len(batch[0])]
            for name, values in zip(ARRAY_NAMES, batch, strict=True):
                if not np.array_equal(values.numpy(), arrays[name][wanted]):
                    raise ValueError(f"{self._name}: the loader gives other samples of {name} than were generated")
            seen += len(wanted)
        if seen != len(self._order):
            raise ValueError(f"{self._name}: the loader gives {seen} samples, expected {len(self._order)}")
        return first_ms

    def epoch_s(self) -> float:
        """Seconds of one epoch; there is nothing in it but the wait for batches."""
        start = perf_counter()
        for _ in self._loader:
            pass
        return perf_counter() - start

    def close(self) -> None:
        """End the workers, close the file."""
        del self._loader
        self._dataset.close()
