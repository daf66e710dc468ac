"""A node of Polaris: the cores nearest to each of its GPUs, and the binding lists that are used there.

Source: ALCF's guide to Polaris (one 32-core EPYC 7543P with two threads a core, four A100); the homework's job script.
"""

from __future__ import annotations

NAME = "Polaris"
GPU_CORES = tuple(tuple(range(first, first + 8)) + tuple(range(first + 32, first + 40)) for first in (24, 16, 8, 0))
HOMEWORK = "list:0,1:8,9:16,17:24,25"
GUIDE = "list:24:16:8:0"
BINDINGS = (HOMEWORK, GUIDE)
