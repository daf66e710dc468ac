"""Cost of a process's first steps (CS336: benchmarking_script, part c)."""
