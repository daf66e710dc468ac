"""Recomputation of the language model's layers: peak memory and time by block size (CS336: gradient_checkpointing)."""
