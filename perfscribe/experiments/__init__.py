"""The experiments, one folder each: levels.py (keys, cells), measure.py (measurement), show.py (tables, figures)."""
