"""Implementations of attention."""
