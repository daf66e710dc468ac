"""What measures: timers, interleaving, statistics, peak memory, precision, profilers."""
