"""What a show.py uses: tables, figures, published figures, Markdown, rounding."""

import os

os.environ["MPLBACKEND"] = "agg"  # a notebook exports its own, without which matplotlib is not imported
