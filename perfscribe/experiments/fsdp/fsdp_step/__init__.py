"""One step under FSDP, traced, from one row a rank to the batch that fills the GPU (FSDP workshop)."""
