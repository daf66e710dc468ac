"""Attention by eight implementations over length, head dimension and dtype (CS336: flash_benchmarking)."""
