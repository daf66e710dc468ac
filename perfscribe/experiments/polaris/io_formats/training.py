"""The Polaris homework's training loop over a map-style data set, with separate times of its parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from perfscribe.analytic.shapes import Seq2SeqShape
from perfscribe.experiments.polaris.io_formats.measure import Training
from perfscribe.instruments.timing import synchronise
from perfscribe.models.seq2seq import make_seq2seq

LEARNING_RATE = 1e-3  # the homework's 1e-3 times the world size, which is 1 here
SHUFFLE_SEED = 0


@dataclass
class Epoch:
    """Wall seconds of one epoch, and milliseconds of each step's loader wait, copy and compute.

    The parts are correct only if the device is synchronised after each of them.
    """

    training_s: float = 0.0
    loader_wait_ms: list[float] = field(default_factory=list)
    copy_ms: list[float] = field(default_factory=list)
    compute_ms: list[float] = field(default_factory=list)


class Trainer:
    """Trains nn.Transformer, as many encoder as decoder layers, with Adam and cross-entropy against float targets.

    source (batch, source_length, features) and target (batch, target_length, features) give an output of the
    target's shape; the loss treats the target's positions as classes: a workload, not a task.
    """

    def __init__(self, level: Training) -> None:
        torch.manual_seed(0)
        self.level, self.device = level, level.device
        depth = {"encoder_layers": level.layers, "decoder_layers": level.layers}
        shape = Seq2SeqShape(d_model=level.features, **depth, d_ff=level.d_ff)
        self.model = make_seq2seq(shape, device=self.device)
        self.model.train()
        self.criterion = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)
        self.last_loss = torch.tensor(float("nan"))

    def warm_up(self, steps: int) -> float:
        """Run steps on random samples in memory, loader included; return their wall seconds."""
        start = perf_counter()
        level, samples = self.level, steps * self.level.batch
        lengths = (level.source_length, level.target_length)
        pairs = torch.utils.data.TensorDataset(*(torch.rand(samples, length, level.features) for length in lengths))
        self._epoch(torch.utils.data.DataLoader(pairs, batch_size=level.batch), apart=True)
        return perf_counter() - start

    def train(self, dataset: Any, epochs: int, apart: bool) -> list[Epoch]:
        """Train and return timed epochs; `apart` synchronises the device after each part of each step.

        apart=False times the homework's loop, which does not synchronise: only the ends of an epoch do.
        """
        generator = torch.Generator().manual_seed(SHUFFLE_SEED)
        # training_samples are drawn again, without repetition, in every epoch
        sampler = torch.utils.data.RandomSampler(
            dataset, replacement=False, num_samples=self.level.training_samples, generator=generator
        )
        loader = torch.utils.data.DataLoader(dataset, sampler=sampler, batch_size=self.level.batch)
        return [self._epoch(loader, apart) for _ in range(epochs)]

    def _epoch(self, loader: Any, apart: bool) -> Epoch:
        def clock() -> float:
            if apart:
                synchronise(self.device)
            return perf_counter()

        epoch = Epoch()
        synchronise(self.device)
        start = now = perf_counter()
        batches = iter(loader)
        while (batch := next(batches, None)) is not None:
            loaded = clock()
            source, target = (part.to(self.device) for part in batch)
            copied = clock()
            self._step(source, target)
            computed = clock()
            epoch.loader_wait_ms.append((loaded - now) * 1e3)
            epoch.copy_ms.append((copied - loaded) * 1e3)
            epoch.compute_ms.append((computed - copied) * 1e3)
            now = computed
        synchronise(self.device)
        epoch.training_s = perf_counter() - start
        return epoch

    def _step(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(source, target), target)
        loss.backward()
        self.optimizer.step()
        self.last_loss = loss.detach()
