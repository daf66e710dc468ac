"""The FSDP workshop's exercises with its custom model, the same one in every row.

Trainer's rows are the workshop's; the bare loop is their peer, of the same steps; the tuned one is what the same GPUs
can do: bf16, blocks compiled, a batch chosen by memory.
"""

from __future__ import annotations

from perfscribe.training import launching

PRELOADED, run = launching.PRELOADED, launching.run
