"""The Polaris homework."""
