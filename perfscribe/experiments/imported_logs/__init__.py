"""Logs of trainings that others ran, beside the log sample of the FSDP workshop's text."""
