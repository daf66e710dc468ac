"""Profilers: what ran on the device, when, and inside which ranges of the program."""
