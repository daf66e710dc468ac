"""What the FSDP workshop's launch lines start, beside this project's."""
