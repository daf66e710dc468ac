"""Foundations that all other packages use: cells and measurements, atomic files, one-line errors, the registry."""
