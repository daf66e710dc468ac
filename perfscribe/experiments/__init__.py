"""The experiments: one folder each, measure.py (what is measured) and present.py (how it is shown)."""
