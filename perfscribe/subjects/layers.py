"""Makes layers of ours pass for a subject's, whose FSDP shards Linear and Embedding of the course's package."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
from pathlib import Path

from torch import Tensor, nn

from perfscribe.subjects import VARIABLE, roots

LAYERS = (nn.Linear, nn.Embedding)
COURSES_OWN = "cs336_basics.model"  # where the course's tests take them from


def pass_for_theirs(model: nn.Module, subject: str) -> None:
    """Let the model's layers be instances, also, of all classes with their names in the subject's loaded modules."""
    with contextlib.suppress(Exception):  # another place, or packages that are missing and not needed
        importlib.import_module(COURSES_OWN)
    folders = roots(Path(json.loads(os.environ[VARIABLE])[subject]))
    for kind in LAYERS:
        theirs = {found for module in list(sys.modules.values()) if (found := _class(module, kind, folders))}
        bases = sorted(theirs, key=lambda one: (-len(one.__mro__), one.__module__))
        for part in model.modules() if bases else ():
            if type(part) is kind:
                with contextlib.suppress(TypeError):  # no common layout
                    part.__class__ = type(kind.__name__, (kind, *bases), {})


def clear_hooks() -> None:
    """Remove the hooks of all tensors and modules, which keep a subject's weights alive: cycles are not collected."""
    for thing in gc.get_objects():
        kind, hooks = type(thing), []
        if issubclass(kind, nn.Module):
            hooks = [one for name, one in vars(thing).items() if name.endswith("_hooks")]
        elif issubclass(kind, Tensor):
            hooks = [thing._backward_hooks, getattr(thing, "_post_accumulate_grad_hooks", None)]
        for one in filter(None, hooks):
            one.clear()
    gc.collect()


def _class(module: object, kind: type[nn.Module], folders: list[Path]) -> type[nn.Module] | None:
    file = Path(getattr(module, "__file__", None) or "/")
    found = getattr(module, kind.__name__, None)
    is_theirs = any(map(file.is_relative_to, folders)) and "site-packages" not in file.parts
    is_layer = isinstance(found, type) and issubclass(found, nn.Module) and not issubclass(found, kind)
    return found if is_theirs and is_layer else None
