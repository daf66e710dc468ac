"""Dtypes under autocast (CS336, assignment 2, benchmarking_mixed_precision), and its LayerNorm question measured.

The factor `part` distinguishes two kinds of cells. "dtypes": a forward and backward pass of the toy model under
autocast, the dtypes read off the tensors. "variance": mean and variance of vectors like LayerNorm's inputs, computed
entirely in one dtype, against float64 of the same rounded inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfscribe.base.cells import Cell, Measurement

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
BATCH, IN_FEATURES, OUT_FEATURES = 8, 20, 5  # of the toy model; its dtypes do not depend on these


@dataclass(frozen=True)
class Autocast:
    """Factors of a cell; those with a default are of the variance."""

    part: str
    device: str
    dtype: str
    variance_mean: float = 0
    variance_std: float = 0
    features: int = 0


def run(cell: Cell) -> Measurement:
    """Measure one cell: six dtypes and the loss, or the errors of mean and variance."""
    of = cell.read(Autocast)
    if of.part == "dtypes":
        return Measurement(values=autocast_values(of.device, DTYPES[of.dtype]))
    from perfscribe.experiments.cs336.autocast_dtypes.variance import variance_values

    inputs = (of.variance_mean, of.variance_std, of.features)
    return Measurement(values=variance_values(of.device, DTYPES[of.dtype], *inputs))


def autocast_values(device: str, dtype_name: str) -> dict[str, Any]:
    """Train the toy model for one pass under autocast; return dtype names as torch writes them, and the loss.

    Hooks on the modules read outputs; parameters and gradients are read afterwards. Several dtypes in one place are
    joined by a comma. Weights and inputs are random, from torch's global generator, inputs in fp32.
    """
    import torch
    from torch import nn

    from perfscribe.models.toy import ToyModel

    model = ToyModel(IN_FEATURES, OUT_FEATURES).to(device)
    inputs = torch.randn(BATCH, IN_FEATURES).to(device)  # (batch, in_features)
    targets = torch.randint(OUT_FEATURES, (BATCH,)).to(device)  # (batch,)
    seen: dict[str, str] = {}

    def note(name: str) -> Any:
        return lambda _module, _inputs, output: seen.update({name: dtype_names(output)})

    model.fc1.register_forward_hook(note("fc1_output_dtype"))
    model.ln.register_forward_hook(note("layernorm_output_dtype"))
    model.register_forward_hook(note("logits_dtype"))
    with torch.autocast(device_type=torch.device(device).type, dtype=getattr(torch, dtype_name)):
        loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return {
        "parameters_dtype": dtype_names(*model.parameters()),
        **seen,
        "loss_dtype": dtype_names(loss),
        "gradients_dtype": dtype_names(*gradients),
        "loss": loss.item(),
    }


def dtype_names(*tensors: Any) -> str:
    """Return the tensors' dtypes without "torch.", each once, sorted."""
    return ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors}))
