"""Training on one device without FSDP: BLOOM, and the FSDP workshop's small model."""
