"""What a present.py uses: tables, figures, published figures, Markdown, rounding."""
