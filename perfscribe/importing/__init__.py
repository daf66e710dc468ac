"""What the FSDP workshop's own files say, as config and as records."""
