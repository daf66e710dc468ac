"""BLOOM on 1, 2, 4 and 8 GPUs of one node, and on GPUs of several nodes."""
