"""Attention and whole models, eager against compiled, in turns (CS336: torch_compile)."""
