"""Memory models against what PyTorch really allocates and keeps, to the byte where no kernel scratch is counted."""

import contextlib
from dataclasses import replace

import pytest
import torch
from allocations import CudaSoftmax, LiveBytes, autocast
from torch._subclasses.fake_tensor import FakeTensorMode

from perfscribe.analytic import attention_memory, memory
from perfscribe.analytic.attention_memory import AttentionCall
from perfscribe.analytic.memory import total_bytes
from perfscribe.analytic.parameters import transformer_parameters
from perfscribe.analytic.shapes import SIZES, Shape
from perfscribe.analytic.workload import Workload
from perfscribe.attention.eager import scaled_dot_product_attention
from perfscribe.models.recomputed import recompute
from perfscribe.models.transformer import Model, next_token_loss

SMALL = [  # small shapes in which different terms dominate
    Workload(Shape(64, 192, 2, 2, 1000), 2, 32, device="cpu"),
    Workload(Shape(64, 192, 2, 2, 1000), 1, 64, device="cpu"),  # one sequence: v needs no copy
    Workload(Shape(64, 192, 2, 1, 1000), 2, 64, device="cpu"),  # one head: nothing to merge
    Workload(Shape(32, 64, 3, 4, 50), 4, 128, device="cpu"),  # N×N matrices
    Workload(Shape(128, 512, 2, 4, 300), 2, 16, device="cpu"),  # parameters
]
IDS = ["logits", "one sequence", "one head", "scores", "parameters"]
# the order of two casts in backward is simplified, and where() allocates one number
TOLERANCE = {"fp32": 8, "bf16": 8 * 2**10}


class Program:
    """The passes whose peaks are predicted."""

    def __init__(self, load: Workload) -> None:
        self.load = load
        self.model = Model(load.shape, load.seq_len)
        self.tokens = torch.zeros(load.batch, load.seq_len, dtype=torch.int64)
        self.targets = torch.zeros_like(self.tokens)

    @contextlib.contextmanager
    def rules(self):
        with autocast(self.load.dtype), CudaSoftmax() if self.load.device == "cuda" else contextlib.nullcontext():
            yield

    def inference(self):
        with torch.no_grad(), self.rules():
            return self.model(self.tokens)

    def forward(self):
        with self.rules():
            return next_token_loss(self.model, self.tokens, self.targets)

    def forward_backward(self):
        loss = self.forward()
        loss.backward()
        return loss

    def prepare_optimizer(self, kind):
        """AdamW after its first step, without gradients."""
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=kind == "foreach")
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return [tensor for state in self.optimizer.state.values() for tensor in state.values()]

    def step(self):
        loss = self.forward_backward()
        self.optimizer.step()
        return loss


def measured_peak(program, run, *more):
    given = [*program.model.parameters(), *program.model.buffers(), program.tokens, program.targets]
    with LiveBytes(*given, *more, cuda=program.load.device == "cuda") as live:
        run()
    return live.peak


def both_passes(load, block_size=None):
    """Predicted bytes of forward and backward: those of a training step, less AdamW's state."""
    phases = memory.step_phase_peaks(load, block_size=block_size)
    return max(total_bytes(phases[name]) - phases[name][memory.STATE] for name in ("forward", "backward"))


def check_passes(load, is_fake=False, **tolerance):
    passes = {"inference": memory.inference_peak(load), "forward": memory.forward_peak(load)}
    predicted = {name: total_bytes(items) for name, items in passes.items()} | {"forward_backward": both_passes(load)}
    for name, size in predicted.items():
        with FakeTensorMode() if is_fake else contextlib.nullcontext():
            program = Program(load)
            assert size == pytest.approx(measured_peak(program, getattr(program, name)), **tolerance), name


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("load", SMALL[1:], ids=IDS[1:])
def test_peaks_of_passes(load, dtype):
    check_passes(replace(load, dtype=dtype), abs=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("block_size", [0.5, 3])
@pytest.mark.parametrize("load", [SMALL[0], SMALL[3]], ids=["logits", "scores"])
def test_peak_of_a_pass_that_recomputes_layers(load, block_size, dtype):
    """Four layers, so that blocks of three leave a shorter one."""
    load = replace(load, dtype=dtype, shape=replace(load.shape, layers=4))
    program = Program(load)
    recompute(program.model, block_size)
    measured = measured_peak(program, program.forward_backward)
    assert both_passes(load, block_size) == pytest.approx(measured, abs=TOLERANCE[dtype])
    assert both_passes(load) > 1.05 * measured


@pytest.mark.parametrize("block_size", [0.5, 4])
def test_peak_of_a_wide_model_that_recomputes_layers(block_size):
    load = Workload(replace(SIZES["2.7B"], layers=4), 4, 1024, cublas_handles=0)
    with FakeTensorMode():
        program = Program(load)
        recompute(program.model, block_size)
        measured = measured_peak(program, program.forward_backward)
    assert both_passes(load, block_size) == pytest.approx(measured, rel=1e-4)


@pytest.mark.parametrize("kind", ["foreach", "for-loop"])
@pytest.mark.parametrize("load", [SMALL[0], SMALL[4]], ids=["logits", "parameters"])
def test_peaks_of_a_training_step(load, kind):
    program = Program(load)
    state = program.prepare_optimizer(kind)
    predicted = max(memory.step_phase_peaks(load, kind).values(), key=total_bytes)
    assert total_bytes(predicted) == pytest.approx(measured_peak(program, program.step, *state), abs=8)
    assert predicted["AdamW state"] == 8 * transformer_parameters(load.shape) + 4 * (9 * load.shape.layers + 3)


@pytest.mark.parametrize(("dtype", "seq_len"), [("fp32", 512), ("bf16", 128)])
def test_peaks_of_a_wide_model_with_cuda_s_rules(dtype, seq_len):
    """The 2.7B model with two of its layers, in fake tensors: no memory is touched."""
    load = Workload(replace(SIZES["2.7B"], layers=2), 4, seq_len, dtype, "cuda", cublas_handles=0)
    check_passes(load, is_fake=True, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("seq_len", "head_dim"), [(128, 16), (32, 64)])
def test_memory_of_an_attention_call(seq_len, head_dim, dtype):
    call = AttentionCall(8, seq_len, head_dim, dtype.itemsize, cublas_handles=0, device="cpu")
    q, k, v, upstream = (torch.randn(8, seq_len, head_dim, dtype=dtype) for _ in range(4))
    for tensor in (q, k, v):
        tensor.requires_grad_()
    with LiveBytes(q, k, v, upstream) as live:
        out = scaled_dot_product_attention(q, k, v)
        before_backward, live.peak = live.now, 0
        out.backward(upstream)
    assert total_bytes(attention_memory.before_backward(call)) == before_backward
    assert total_bytes(attention_memory.backward_peak(call)) == pytest.approx(live.peak, abs=4)
