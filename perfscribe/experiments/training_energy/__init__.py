"""Energy of the FSDP workshop's whole trainings, as counted beside them; measures nothing itself."""
