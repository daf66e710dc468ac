"""BLOOM models of transformers: an exact shape with random weights, or weights from a folder or the hub."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from perfscribe.analytic.workshop_shapes import BLOOM, BloomShape
from perfscribe.models.seeded import seeded

if TYPE_CHECKING:
    from transformers import BloomConfig

HUB = "hub"


def shape_of(model_name: str) -> BloomShape:
    """Shape of a model by name; ValueError lists the known names."""
    if model_name not in BLOOM:
        raise ValueError(f"model_name: {model_name!r}: expected one of {', '.join(BLOOM)}")
    return BLOOM[model_name]


def configuration(shape: BloomShape) -> BloomConfig:
    """Config for transformers of a shape; dropout is off, as in bigscience/bloom-560m."""
    from transformers import BloomConfig

    sizes = asdict(shape)
    layers, heads = sizes.pop("num_layers"), sizes.pop("num_heads")
    return BloomConfig(**sizes, n_layer=layers, n_head=heads, use_cache=False, pad_token_id=3)


def _loaded(source: str, shape: BloomShape, local: bool) -> Any:
    """Load only safetensors, since other formats are pickles, which run code when loaded."""
    from safetensors import SafetensorError
    from transformers import BloomForCausalLM

    try:
        loaded: Any = BloomForCausalLM.from_pretrained(
            source,
            use_safetensors=True,
            local_files_only=local,
            dtype=torch.float32,
            use_cache=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"weights: {source}: no BLOOM weights can be read: {lines[0]}") from None
    model, report = loaded
    config = model.config
    found = BloomShape(config.hidden_size, config.n_layer, config.n_head, config.vocab_size)
    if found != shape:
        raise ValueError(f"weights: {source}: expected {shape}, found {found}")
    if report["missing_keys"]:  # transformers would leave them random
        raise ValueError(f"weights: {source}: {min(report['missing_keys'])} is not among them")
    return model


def build(model_name: str, weights: str | None, seed: int, device: str = "cpu") -> Any:
    """Make the model in fp32 on the device.

    weights: None for random ones, drawn from N(0, 0.02) as BLOOM's were, the same per seed and kind of device:
    throughput and memory are those of the trained model, losses and answers are not. "hub" to download those of
    `model_name`, else a folder with config.json and model.safetensors.
    Raises ValueError (one line) for an unknown name, unreadable weights or weights of another shape.
    """
    from transformers import BloomForCausalLM

    shape = shape_of(model_name)
    if weights is None:
        with seeded(seed, device):
            return BloomForCausalLM(configuration(shape))
    if weights == HUB:
        return _loaded(model_name, shape, local=False).to(device)
    if not Path(weights).is_dir():
        raise ValueError(f"weights: {weights}: no such folder")
    return _loaded(weights, shape, local=True).to(device)
