"""Optimizer state divided among ranks: memory, step time, and the difference from ZeRO (CS336)."""
