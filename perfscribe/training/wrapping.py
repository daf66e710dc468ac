"""What wraps a model, read off the object: what was asked for may have been ignored without a word.

Trainer on a CPU trains with plain DDP where FSDP was asked, and without anything where there is one process.
"""

from __future__ import annotations

from typing import Any

from torch import nn

NONE, DATA_PARALLEL, DDP, FSDP1, FSDP2 = "none", "DataParallel", "DDP", "FSDP1", "FSDP2"


def of_model(model: nn.Module) -> str:
    """One of none, DataParallel, DDP, FSDP1, FSDP2; a compiled model is looked into."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    kinds: dict[Any, str] = {
        nn.DataParallel: DATA_PARALLEL,
        nn.parallel.DistributedDataParallel: DDP,
        FullyShardedDataParallel: FSDP1,
        FSDPModule: FSDP2,
    }
    inner = getattr(model, "_orig_mod", model)
    return next((name for kind, name in kinds.items() if isinstance(inner, kind)), NONE)


def units(model: nn.Module) -> int:
    """How many units FSDP made of the model (each gathers its parameters at once); 0 without FSDP."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    return sum(isinstance(module, (FSDPModule, FullyShardedDataParallel)) for module in model.modules())


def of_trainer(trainer: Any) -> str:
    """What wrapped the model that this Trainer trained; ask after train(), which is what wraps it."""
    return of_model(trainer.model_wrapped)
