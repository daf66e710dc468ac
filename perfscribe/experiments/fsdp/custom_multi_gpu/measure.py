"""Measures the FSDP workshop's exercises with its custom model, the same model in every row.

Trainer's rows are the workshop's; the bare loop runs the same steps; the tuned loop shows the limit of the same GPUs:
bf16, compiled blocks, a batch chosen by memory.
"""

from __future__ import annotations

from perfscribe.training import launching

PRELOADED, run = launching.PRELOADED, launching.run
