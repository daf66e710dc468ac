"""Ways to share a model's training among ranks by torch's DDP and FSDP: speed, memory, traffic (FSDP workshop)."""
