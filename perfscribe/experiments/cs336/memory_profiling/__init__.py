"""Memory of the language model over a pass: timelines, peaks, largest allocations (CS336: memory_profiling)."""
