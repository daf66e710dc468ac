"""Attention by every implementation over length, head dimension and dtype (CS336: flash_benchmarking)."""
