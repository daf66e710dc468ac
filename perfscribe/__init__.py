"""Measure how deep-learning systems perform on the machine at hand, and write the lab report."""

__version__ = "0.1.0"
