"""Checkpoints of a training that is divided among ranks: each rank writes its part, any number of ranks reads them.

Written by torch.distributed.checkpoint under a temporary name, and renamed when all ranks are done, so that one that is
there is whole. (Its metadata file is a pickle of torch's own: only read what this program has written.)
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from perfscribe.training.bare_loop import Loop
from perfscribe.training.checkpoint_size import needed_bytes

NAME = re.compile(r"step-(\d+)")
GIB = 2**30


def require_room(folder: Path, parameters: int, keep: int, written_again: int = 0) -> None:
    """ValueError with one line where the disk has less room than keep_checkpoints needs; said before training."""
    needed, free = needed_bytes(parameters, keep, written_again), shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(
            f"keep_checkpoints: {keep}: they and the one being written take {needed / GIB:.2f} GiB, "
            f"{free / GIB:.2f} GiB are free"
        )


def finished(folder: Path) -> list[tuple[int, Path]]:
    """Whole checkpoints by their optimizer step, the last one last."""
    found = ((NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return sorted((int(match[1]), path) for match, path in found if match)


def save(loop: Loop, done: int, folder: Path, keep: int) -> Path:
    """Write the state after `done` optimizer steps and drop all but the last `keep`; a collective."""
    whole, part = folder / f"step-{done}", folder / f"step-{done}.part"
    _on_first_rank(lambda: shutil.rmtree(part, ignore_errors=True))
    state_dict_saver.save(_state(loop, done), checkpoint_id=part)
    _on_first_rank(lambda: _publish(part, whole, folder, keep))
    return whole


def load(loop: Loop, path: Path) -> int:
    """Take a checkpoint's state over, whatever number of ranks wrote it; the optimizer steps that it has behind it."""
    state = _state(loop, 0)
    state_dict_loader.load(state, checkpoint_id=path)
    weights = state["model"]
    weights |= {again: weights[first] for again, first in tied_names(loop.model).items()}
    set_state_dict(loop.model, loop.optimizer, model_state_dict=weights, optim_state_dict=state["optimizer"])
    if loop.scaler.is_enabled():
        kept = loop.scaler.state_dict()
        loop.scaler.load_state_dict(kept | {"scale": float(state["scale"])})
    return int(state["done"])


def tied_names(model: nn.Module) -> dict[str, str]:
    """Further names of parameters that have several, with the first name of each."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    found = {name: first.setdefault(id(parameter), name) for name, parameter in named}
    return {name: one for name, one in found.items() if name != one}


def tied_elements(model: nn.Module) -> int:
    """Elements of parameters that a state with all names holds once more."""
    return sum(model.get_parameter(name).numel() for name in tied_names(model))


def _state(loop: Loop, done: int) -> dict[str, Any]:
    model, optimizer = get_state_dict(loop.model, loop.optimizer)
    for again in tied_names(loop.model):  # torch.distributed.checkpoint would write the tensor once for each name
        del model[again]
    scale = torch.tensor(loop.scaler.get_scale(), dtype=torch.float64)
    return {"model": model, "optimizer": optimizer, "done": torch.tensor(done), "scale": scale}


def _publish(part: Path, whole: Path, folder: Path, keep: int) -> None:
    shutil.rmtree(whole, ignore_errors=True)
    part.rename(whole)
    for _, old in finished(folder)[:-keep]:
        shutil.rmtree(old)


def _on_first_rank(act: Any) -> None:
    """Let one rank act, while the others wait."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        act()
    if dist.is_initialized():
        dist.barrier()


def size_bytes(path: Path) -> int:
    """Of all files of a checkpoint."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
