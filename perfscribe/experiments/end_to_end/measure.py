"""benchmarking_script of CS336 assignment 2: forward, backward and optimizer step of the language model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from perfscribe.cells import Cell, Level, Measurement, grid
from perfscribe.models.shapes import SIZES

if TYPE_CHECKING:
    import torch

    from perfscribe.models.transformer import Model

LEARNING_RATE = 1e-4
# Largest relative error of the loss against float64 on a short prefix that still counts as correct.
TOLERANCE = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 1e-2, "fp16": 2e-3}
CHECKED_TOKENS = 32


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Size x context x dtype, then at one context the dtypes asked for there alone."""
    single = config["single_length"]
    everywhere = {name: config[name] for name in ("device", "size", "seq_len", "dtype")}
    wanted: list[dict[str, Level]] = [{**levels, "warmup_steps": config["warmup_steps"]} for levels in grid(everywhere)]
    at_one = {"device": config["device"], "size": config["size"], "seq_len": [single["seq_len"]]}
    for levels in grid({**at_one, "dtype": single["dtype"], "warmup_steps": [config["warmup_steps"]]}):
        if levels not in wanted:
            wanted.append(levels)
    fixed = {"batch": config["batch"], "timed_steps": config["timed_steps"]}
    return [_cell({**levels, **fixed}) for levels in wanted]


def _cell(factors: dict[str, Any]) -> Cell:
    # True fp32 runs without tensor cores and costs about four times what the others do.
    weight = 4.0 if factors["dtype"] == "fp32" else 1.0
    shape, tokens = SIZES[factors["size"]], factors["batch"] * factors["seq_len"]
    work = shape.layers * (12 * shape.d_model**2 + 2 * factors["seq_len"] * shape.d_model) * tokens
    steps = factors["warmup_steps"] + factors["timed_steps"]
    return Cell(
        factors,
        requires=("cuda",) if factors["device"] == "cuda" else (),
        cost=float(weight * steps * (work + 1e8)),
    )


def run(cell: Cell) -> Measurement:
    """Time a full step by phases, forward with and without a graph, and forward with backward as one; count memory."""
    import torch

    from perfscribe.models.transformer import Model
    from perfscribe.timing import record, time_host, time_phases

    device, dtype = cell["device"], cell["dtype"]
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    model = Model(SIZES[cell["size"]], cell["seq_len"], device=device)
    tokens = torch.randint(model.shape.vocab_size, (cell["batch"], cell["seq_len"] + 1), device=device)
    step = Step(model, tokens, device, dtype)
    measurement = Measurement(values={"parameters": sum(p.numel() for p in model.parameters())})
    # The passes that need least memory come first; a later one that fails still takes the cell's figures along.
    measurement.values |= check_loss(model, tokens, device, dtype)

    counts = {"warmup": cell["warmup_steps"], "timed": cell["timed_steps"], "device": device}
    record(measurement, "forward_no_grad_ms", time_host(step.inference, **counts))
    measurement.values |= peak("forward_no_grad", step.inference, device)
    record(measurement, "forward_backward_ms", time_host(step.forward_backward, prepare=step.zero_grad, **counts))
    step.make_optimizer()
    phases = time_phases(step.full, prepare=step.zero_grad, **counts)
    for name in ("forward", "backward", "optimizer"):
        record(measurement, f"{name}_ms", phases[name])
    record(measurement, "full_step_ms", phases["step"])
    measurement.values |= step.memory_by_phase()
    if device == "cuda":
        measurement.values["gpu_name"] = torch.cuda.get_device_name()
    return measurement


class Step:
    """What a training step does, in pieces that can be timed apart."""

    def __init__(self, model: Model, tokens: torch.Tensor, device: str, dtype: str) -> None:
        self.model, self.device, self.dtype = model, device, dtype
        self.inputs, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.optimizer: torch.optim.Optimizer | None = None
        self.scaler: Any = None

    def precision(self) -> AbstractContextManager[Any]:
        """Autocast for fp16 and bf16, nothing for fp32 and TF32."""
        return precision(self.device, self.dtype)

    def loss(self) -> torch.Tensor:
        """Forward with the graph kept."""
        from perfscribe.models.transformer import next_token_loss

        with self.precision():
            return next_token_loss(self.model, self.inputs, self.targets)

    def inference(self) -> None:
        """Forward without a graph, to the logits."""
        import torch

        with torch.no_grad(), self.precision():
            self.model(self.inputs)

    def forward_backward(self) -> None:
        """Forward and backward as one."""
        self.loss().backward()

    def zero_grad(self) -> None:
        """Give the gradients' memory back, as a step of the homework begins."""
        self.model.zero_grad(set_to_none=True)

    def make_optimizer(self) -> None:
        """AdamW; with fp16 a loss scaler, without which its gradients would vanish."""
        import torch

        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self.scaler = torch.amp.GradScaler(self.device, enabled=self.dtype == "fp16")

    def full(self, mark: Any) -> None:
        """A training step, marking the end of forward, backward and optimizer."""
        loss = self.loss()
        mark("forward")
        self.scaler.scale(loss).backward()
        del loss
        mark("backward")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        mark("optimizer")

    def memory_by_phase(self) -> dict[str, Any]:
        """Peaks of forward with its graph, and of a full step, each in an untimed pass."""
        values: dict[str, Any] = {}
        self.zero_grad()
        values |= peak("forward_graph", self._hold_loss, self.device)
        self.zero_grad()
        values |= peak("full_step", lambda: self.full(lambda _: None), self.device)
        return values

    def _hold_loss(self) -> None:
        loss = self.loss()
        del loss


def precision(device: str, dtype: str) -> AbstractContextManager[Any]:
    """The autocast context of a dtype level on a device."""
    from contextlib import nullcontext

    import torch

    if dtype in ("fp32", "tf32"):
        return nullcontext()
    return torch.autocast(device, dtype=torch.bfloat16 if dtype == "bf16" else torch.float16)


def peak(name: str, run_once: Any, device: str) -> dict[str, Any]:
    """Peak of allocated and reserved bytes while run_once() runs, under this name."""
    from perfscribe.memory import PeakMemory

    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
    with PeakMemory(device) as memory:
        run_once()
    values: dict[str, Any] = {f"peak_{name}_bytes": memory.peak_allocated_bytes, "memory_counter": memory.counter}
    if memory.peak_reserved_bytes is not None:
        values[f"peak_{name}_reserved_bytes"] = memory.peak_reserved_bytes
    return values


def check_loss(model: Model, tokens: torch.Tensor, device: str, dtype: str) -> dict[str, Any]:
    """Relative error of the loss on a short prefix against float64; ValueError beyond the dtype's tolerance.

    Models of a billion parameters and more are compared with fp32, since float64 weights would double their memory.
    """
    import copy

    import torch

    from perfscribe.models.transformer import next_token_loss

    inputs, targets = tokens[:1, :-1][:, :CHECKED_TOKENS], tokens[:1, 1:][:, :CHECKED_TOKENS]
    with torch.no_grad():
        with precision(device, dtype):
            got = float(next_token_loss(model, inputs, targets))
        if sum(p.numel() for p in model.parameters()) < 1e9:
            reference, name = copy.deepcopy(model).double(), "float64"
            expected = float(next_token_loss(reference, inputs, targets))
        else:
            name, before = "fp32", torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("highest")
            expected = float(next_token_loss(model, inputs, targets))
            torch.set_float32_matmul_precision(before)
    error = abs(got - expected) / expected
    if not error <= TOLERANCE[dtype]:
        raise ValueError(f"loss {got:g} against {expected:g} in {name}, allowed error {TOLERANCE[dtype]:g}")
    return {"loss_relative_error": error, "loss_reference_dtype": name}
