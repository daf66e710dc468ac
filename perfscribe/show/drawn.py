"""What files are made of a figure."""

from __future__ import annotations

from pathlib import Path

FIGURE_KINDS = ("svg", "png")
PUBLISHED = "published.json"  # marks a site that is committed


def figure_kinds(site_folder: Path) -> tuple[str, ...]:
    """Of a figure of this site, results/<site>: of a published one what its report shows alone."""
    return FIGURE_KINDS[:1] if (site_folder / PUBLISHED).is_file() else FIGURE_KINDS
