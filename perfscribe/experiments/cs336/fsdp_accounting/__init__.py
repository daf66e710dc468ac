"""Memory and time of fully sharded data parallelism, next to unsharded training (CS336: fsdp, fsdp_accounting)."""
