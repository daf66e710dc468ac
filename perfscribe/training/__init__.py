"""Training through Hugging Face's Trainer: knobs, what wrapped the model, histories, answers."""
