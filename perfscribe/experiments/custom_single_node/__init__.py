"""The FSDP workshop's small model on one device: shows what baseline measures."""
