"""A training divided by FSDP that is saved in parts and goes on with another number of ranks."""
