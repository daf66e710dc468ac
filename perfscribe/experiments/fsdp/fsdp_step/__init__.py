"""One step under FSDP, traced, from one row per rank to the batch that fills the GPU (FSDP workshop)."""
