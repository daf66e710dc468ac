"""Verbs of `./run` other than the report."""
