"""Profilers: what ran on the device, when, and in which ranges of the program."""
