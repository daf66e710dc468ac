"""What the first steps of a process cost (CS336: benchmarking_script, part c)."""
