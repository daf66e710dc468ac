"""`./run compare`: compares the same cells of two sites, or of two commits, figure by figure."""
