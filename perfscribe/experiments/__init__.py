"""The experiments: one folder each, measure.py (what is measured) and show.py (how it is shown)."""
