"""A training that is killed goes on from its last checkpoint; what it ends with is kept."""
