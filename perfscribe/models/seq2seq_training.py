"""The Polaris homework's training on one device: model, samples and loop, for any dtype and size.

Samples are uniform random numbers in host memory, as in the homework: the cost of file formats is measured elsewhere,
and a data set on the device would count in peak memory.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from perfscribe.analytic.shapes import Seq2SeqShape
from perfscribe.instruments import precision
from perfscribe.instruments.correctness import loss_error
from perfscribe.instruments.memory import PeakMemory
from perfscribe.instruments.profiling.torch_profiler import busy_ms
from perfscribe.instruments.timing import synchronise
from perfscribe.models.seq2seq import make_seq2seq

LEARNING_RATE = 1e-3  # the homework's 1e-3 times the world size, which is 1 here
CHECKED_SAMPLES = 2
PROFILED_STEPS = 3


@dataclass(frozen=True)
class Job:
    """Configuration of a training.

    features: per position of the samples, by default d_model; the model accepts no others.
    dtype: fp32, tf32, bf16 or fp16, of the matrix products.
    weights: fp32 or bf16, of parameters, gradients and optimizer state; bf16 makes the whole model bf16. With fp32
        weights, dtypes bf16 and fp16 use autocast, and fp16 scales the loss.
    batches: per_sample, collated sample by sample as the homework's loader does; per_batch, indexed in host memory;
        on_device, indexed on the device.
    """

    device: str
    d_model: int
    layers: int
    d_ff: int
    source_length: int
    target_length: int
    samples: int
    batch: int
    epochs: int
    features: int | None = None
    dtype: str = "fp32"
    weights: str = "fp32"
    batches: str = "per_batch"


@dataclass(frozen=True)
class Epoch:
    """Host-clock seconds of one epoch, device synchronised at both ends, and the mean loss of its steps.

    queued_s: seconds until the last step was queued, as a clock read without synchronising would show.
    """

    time_s: float
    queued_s: float
    loss: float


class Seq2SeqTraining:
    """nn.Transformer, Adam, and cross-entropy against float targets.

    The loss treats target positions as classes, as in the homework: the training is a load, it learns no task.
    """

    def __init__(self, job: Job) -> None:
        """Seed weights, samples and their order from torch's seed. Raises torch's out-of-memory errors."""
        precision.set_matmul_precision(job.dtype)
        if job.device == "cpu":
            # Steps small enough for a CPU lose more to thread synchronisation than they gain from threads: next to
            # other work two threads took ten times as long as one.
            torch.set_num_threads(1)
        self.job = job
        self.autocasts = job.weights == "fp32"
        shape = Seq2SeqShape(d_model=job.d_model, encoder_layers=job.layers, decoder_layers=job.layers, d_ff=job.d_ff)
        self.model = make_seq2seq(shape, device=job.device, dtype=precision.tensor_dtype(job.weights))
        self.model.train()
        self.criterion = torch.nn.CrossEntropyLoss()
        self.samples = self._make_samples()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)
        self.scaler = torch.amp.GradScaler(job.device, enabled=job.dtype == "fp16")
        self.order = torch.Generator().manual_seed(torch.initial_seed())

    def _make_samples(self) -> tuple[Tensor, Tensor]:
        """Source (samples, source_length, features) and target (samples, target_length, features), fp32."""
        job = self.job
        generator = torch.Generator().manual_seed(torch.initial_seed())
        where = job.device if job.batches == "on_device" else "cpu"
        lengths, features = (job.source_length, job.target_length), job.features or job.d_model
        source, target = (torch.rand(job.samples, n, features, generator=generator).to(where) for n in lengths)
        return source, target

    def parameters(self) -> int:
        """Number of the model's parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def check(self) -> dict[str, float]:
        """Relative error of a few samples' loss against float64, without dropout; WrongResult beyond the tolerance.

        Raises the model's error if the samples have another number of features than d_model.
        """
        source, target = (self._to_device(part[:CHECKED_SAMPLES]) for part in self.samples)
        # Gradients stay enabled: without them nn.Transformer takes a fused path that training never runs.
        self.model.eval()
        got = float(self._loss(source, target).detach())
        reference = copy.deepcopy(self.model).double()
        expected = float(self.criterion(reference(source.double(), target.double()), target.double()).detach())
        self.model.train()
        return loss_error(got, expected, self.job.dtype)

    def epoch(self) -> Epoch:
        """Train on every sample once, in a new random order."""
        losses = []
        synchronise(self.job.device)
        start = perf_counter()
        for source, target in self._batches():
            losses.append(self.step(self._to_device(source), self._to_device(target)))
        queued = perf_counter()
        synchronise(self.job.device)
        end = perf_counter()
        return Epoch(end - start, queued - start, float(torch.stack(losses).double().mean()))

    def step(self, source: Tensor, target: Tensor) -> Tensor:
        """Run one training step and return its loss, a scalar on the device."""
        self.optimizer.zero_grad()
        loss = self._loss(source, target)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def peak(self) -> dict[str, Any]:
        """Peak memory of one more step, including moving its full batch to the device; see PeakMemory.values."""
        self.optimizer.zero_grad()
        with PeakMemory(self.job.device) as memory:
            self._full_step()
        return memory.values()

    def gpu_ms(self) -> float | str:
        """Time per step in which the GPU works (ms), of a few more steps under the profiler; see busy_ms."""
        return busy_ms(self._full_step, PROFILED_STEPS)

    def _full_step(self) -> None:
        """Train on the first full batch, moved to the device."""
        source, target = (self._to_device(part[: self.job.batch]) for part in self.samples)
        self.step(source, target)

    def skipped_steps(self) -> int:
        """Number of steps the loss scaler skipped because gradients overflowed; 0 without a scaler.

        Derived from the scale, which each skip halves: correct until the scale grows, after 2,000 good steps in a row.
        """
        if not self.scaler.is_enabled():
            return 0
        initial = torch.amp.GradScaler(self.job.device).get_scale()
        return max(0, round(math.log2(initial / self.scaler.get_scale())))

    def _loss(self, source: Tensor, target: Tensor) -> Tensor:
        """Loss of source (B, source_length, features) and target (B, target_length, features); a scalar."""
        if not self.autocasts:
            loss: Tensor = self.criterion(self.model(source, target), target)
            return loss
        with precision.autocast(self.job.device, self.job.dtype):
            loss = self.criterion(self.model(source, target), target)
        return loss

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Source and target batches in random order; the last batch may be smaller."""
        job, pairs = self.job, TensorDataset(*self.samples)
        if job.batches == "per_sample":
            yield from DataLoader(pairs, sampler=RandomSampler(pairs, generator=self.order), batch_size=job.batch)
            return
        for indices in torch.randperm(job.samples, generator=self.order).split(job.batch):
            found = indices.to(self.samples[0].device)
            yield self.samples[0][found], self.samples[1][found]

    def _to_device(self, part: Tensor) -> Tensor:
        return part.to(self.job.device, precision.tensor_dtype(self.job.weights))
