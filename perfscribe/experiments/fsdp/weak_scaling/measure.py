"""Measures the FSDP workshop's weak scaling: twice the GPUs, twice the layers, half the batch per GPU.

In addition to its rows, two variants of equal work per GPU (see analytic.weak_scaling). Rows that are the same training
are measured once.
"""

from __future__ import annotations

from perfscribe.training import launching

PRELOADED, run = launching.PRELOADED, launching.run
