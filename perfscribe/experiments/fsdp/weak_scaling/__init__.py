"""The FSDP workshop's weak scaling, and two variants whose work a GPU really stays the same."""
