"""Scaling models of terms that were measured apart: computing, latency, bandwidth (docs/scaling.md); no torch."""
