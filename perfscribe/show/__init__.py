"""What a show.py uses: tables, figures, published figures, Markdown, rounding."""
