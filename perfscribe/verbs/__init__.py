"""What `./run` does beside the report."""
