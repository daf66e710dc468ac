"""Attention in plain PyTorch over sequence length and head dimension (CS336: pytorch_attention)."""
