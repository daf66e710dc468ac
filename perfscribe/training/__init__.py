"""Trainings of the FSDP workshop with Hugging Face's Trainer, a bare loop or a tuned loop, on one or several ranks."""
