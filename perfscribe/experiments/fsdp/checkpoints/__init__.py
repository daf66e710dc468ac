"""A training divided by FSDP, saved in parts and resumed with another number of ranks."""
