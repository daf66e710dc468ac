"""The all-reduce that is tried before a training on several processes."""
