"""Links to headings. The HTML page is written without pandas, which other modules here need."""

from __future__ import annotations

import re


def anchor(heading: str) -> str:
    """Anchor of a heading within its page, as Git hosts derive it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
