"""`./run compare`: the same cells of two sites, or of two commits, figure by figure."""
