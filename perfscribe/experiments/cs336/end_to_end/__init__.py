"""The language model end to end: forward, backward, optimizer (CS336: benchmarking_script)."""
