"""Measures the FSDP workshop's multi-GPU and multi-node exercises: BLOOM with its rows divided among more ranks."""

from __future__ import annotations

from perfscribe.training import launching

run = launching.run
PRELOADED = (*launching.PRELOADED, launching.BLOOMS_CODE)
