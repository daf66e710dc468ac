"""Dtypes that autocast picks for the parts of a small model, and why LayerNorm's statistics need a wide one."""
