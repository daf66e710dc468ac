"""Imported by the process that ranks are forked from, since each rank would take seconds for these imports.

transformers.Trainer is imported only on GPU machines (on a CPU it does not shard), where it takes ten seconds.
"""

from __future__ import annotations

import torch

from perfscribe.training import on_ranks as on_ranks

if torch.cuda.device_count():  # counted by NVML: CUDA must not start before a fork
    from perfscribe.training import trainer as trainer

    if torch.cuda.is_initialized():
        raise RuntimeError("importing transformers.Trainer has started CUDA, which does not survive a fork")
