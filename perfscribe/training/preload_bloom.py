"""Imported by the process that ranks are forked from, where they train BLOOM."""

from __future__ import annotations

from transformers import BloomForCausalLM

from perfscribe.training import preload

__all__ = ["BloomForCausalLM", "preload"]
