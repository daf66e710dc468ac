"""Energy of a training step and of a product, over windows of a second and more."""
