"""Stanford CS336, assignment 2 (systems)."""
