"""Data parallelism by our wrappers and PyTorch's (CS336: naive_ddp to ddp_bucketed_benchmarking)."""
