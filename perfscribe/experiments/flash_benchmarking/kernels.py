"""Which kernels an implementation really ran, as torch's profiler saw them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from perfscribe.attention.backends import named

SHOWN_KERNELS = 2
NAME_LENGTH = 64
# Words in kernels' (on the CPU: operators') names that give away a backend of scaled_dot_product_attention.
BACKENDS = (
    ("CUDNN_ATTENTION", r"cudnn"),
    ("FLASH_ATTENTION", r"pytorch_flash|flash_fwd|flash_bwd|_scaled_dot_product_flash_attention"),
    ("EFFICIENT_ATTENTION", r"fmha_cutlass|AttentionKernel|AttentionBackwardKernel|efficient_attention"),
    ("MATH", r"_scaled_dot_product_attention_math|softmax"),
)
NOT_SEEN = "not seen by the profiler"


def seen(call: Callable[[], object], device: str, implementation: str) -> dict[str, str]:
    """kernels: those that took most time, shortened; sdpa_backend: what scaled_dot_product_attention took, if it is it.

    device cpu: operators of attention in place of kernels.
    """
    times = traced(call, device)
    if device != "cuda":
        times = Counter({name: spent for name, spent in times.items() if "_scaled_dot_product" in name})
    told = {"kernels": "; ".join(short(name) for name, _ in times.most_common(SHOWN_KERNELS)) or NOT_SEEN}
    if device != "cuda" and not times:
        told = {}
    return told | ({"sdpa_backend": backend_of(list(times))} if named(implementation).sdpa else {})


def traced(call: Callable[[], object], device: str) -> Counter[str]:
    """Microseconds by name of kernel (on the CPU: of operator) of one call."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device == "cuda"
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # Kineto would print two lines for each profile
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        call()
        if on_gpu:
            torch.cuda.synchronize()
    return _times(profiler.events(), on_gpu)


def _times(events: Any, on_gpu: bool) -> Counter[str]:
    """Time by name; of a GPU's trace its kernels alone, without copies and fills."""
    times: Counter[str] = Counter()
    for event in events:
        if not on_gpu:
            times[event.name] += event.cpu_time_total
        elif str(event.device_type).endswith("CUDA") and not event.name.startswith(("Memset", "Memcpy")):
            times[event.name] += event.time_range.elapsed_us()
    return times


def backend_of(names: list[str]) -> str:
    """The SDPBackend that kernels or operators of these names belong to."""
    return next((backend for backend, words in BACKENDS if re.search(words, " ".join(names))), NOT_SEEN)


def short(name: str) -> str:
    """A kernel's name without return type, template arguments and parameters."""
    bare = re.sub(r"^(void|std::enable_if\S*) ", "", name)
    return re.split(r"[<(]", bare, maxsplit=1)[0][:NAME_LENGTH].strip() or name[:NAME_LENGTH]
