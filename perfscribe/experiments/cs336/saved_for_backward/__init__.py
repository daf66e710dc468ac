"""Memory that a block of the language model saves for backward, by operation (CS336: memory_profiling, part f)."""
