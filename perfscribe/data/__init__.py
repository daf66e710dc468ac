"""Data sets, generated or fetched."""
