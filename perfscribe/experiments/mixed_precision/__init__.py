"""fp32, TF32, bf16 and fp16 side by side, from the records of end_to_end (CS336: benchmarking_mixed_precision)."""
