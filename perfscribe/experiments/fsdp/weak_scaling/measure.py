"""The FSDP workshop's weak scaling: twice the GPUs, twice the layers, half the batch of each GPU.

Its own rows, and two variants of equal work a GPU (analytic.weak_scaling says which). Rows that are the same training
are measured once.
"""

from __future__ import annotations

from perfscribe.training import launching

PRELOADED, run = launching.PRELOADED, launching.run
