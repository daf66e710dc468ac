"""The models that the experiments run."""
