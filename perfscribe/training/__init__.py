"""Trainings of the FSDP workshop: by Hugging Face's Trainer, by a bare loop, and tuned; alone and on several ranks."""
