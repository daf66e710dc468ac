"""Meaning of the dtype levels: fp32, tf32 (fp32 with TF32 matrix products), bf16 and fp16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

DTYPES = ("fp32", "tf32", "bf16", "fp16")


def requires(device: str, dtype: str) -> tuple[str, ...]:
    """Return the capabilities (plan/capabilities.py) that a cell with this device and dtype needs.

    A GPU without TF32 or bf16 units silently accepts the setting and computes something else. TF32 is a mode of
    NVIDIA's GPUs; CPUs do not have it.
    """
    on_gpu = device == "cuda"
    needed = {"cuda": on_gpu, "tf32": dtype == "tf32", "bf16": on_gpu and dtype == "bf16"}
    return tuple(name for name, is_needed in needed.items() if is_needed)


def set_matmul_precision(dtype: str) -> None:
    """Allow TF32 for fp32 products at level tf32, and at no other."""
    import torch

    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")


def autocast(device: str, dtype: str) -> AbstractContextManager[Any]:
    """Return the autocast context for a model with fp32 parameters; no autocast for fp32 and tf32."""
    import torch

    if dtype in ("fp32", "tf32"):
        return nullcontext()
    return torch.autocast(device, dtype=tensor_dtype(dtype))


def tensor_dtype(dtype: str) -> torch.dtype:
    """Return the dtype of tensors at this level, without autocast."""
    import torch

    return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(dtype, torch.float32)
