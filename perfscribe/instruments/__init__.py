"""Measuring instruments: timers, interleaving, statistics, peak memory, precision, profilers."""
