"""Attention and whole models, eager against compiled, interleaved (CS336: torch_compile)."""
