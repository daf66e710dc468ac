"""Imported by the process that ranks are forked from: what they would each take seconds to import.

transformers.Trainer is asked for on GPUs alone (on a CPU it does not shard), and takes ten seconds there.
"""

from __future__ import annotations

import torch

from perfscribe.training import on_ranks as on_ranks

if torch.cuda.device_count():  # by NVML there: CUDA itself does not survive a fork
    from perfscribe.training import trainer as trainer

    if torch.cuda.is_initialized():
        raise RuntimeError("importing transformers.Trainer has started CUDA, which does not survive a fork")
