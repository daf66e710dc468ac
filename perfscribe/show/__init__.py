"""Helpers for show.py modules: tables, figures, published figures, Markdown, rounding."""

import os

os.environ["MPLBACKEND"] = "agg"  # notebooks export a backend that may make importing matplotlib fail
