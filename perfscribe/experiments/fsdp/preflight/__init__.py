"""The all-reduce self-test before a training on several processes."""
