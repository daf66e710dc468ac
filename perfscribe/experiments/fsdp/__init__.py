"""The KAUST workshop on FSDP."""
