"""What stands in a report for what a site did not measure: once a section, not in each place."""

from __future__ import annotations

import re

# Reports of other sites are not read for this: publishing one would make all others older than what they tell.
ASIDE = " ([who measured it](../README.md#experiments-by-site))"
_NOTICE = re.compile(rf"(?:\*\*.+\*\*\n)?\*Not measured at this site: experiment `(\w+)`\*{re.escape(ASIDE)}\.")


def notice(experiment: str) -> str:
    """The line that stands for a table, a figure or a finding."""
    return f"*Not measured at this site: experiment `{experiment}`*{ASIDE}."


def once_a_section(text: str) -> str:
    """Markdown whose sections ("##") say of an experiment once that it was not measured, at the first place.

    Questions that only this would follow go too, and headings below a section's own with nothing else under them.
    """
    kept: list[str] = []
    said: set[str] = set()
    emptied = False  # something under the last heading was left out
    for block in [*text.split("\n\n"), "# "]:
        if block.startswith("#"):
            if emptied and kept[-1].startswith("###"):
                kept.pop()
            emptied = False
        if re.match(r"##? ", block):
            said.clear()
        found = _NOTICE.fullmatch(block.strip())
        if found and found[1] in said:
            emptied = True
            continue
        if found:
            said.add(found[1])
        kept.append(block)
    return "\n\n".join(kept[:-1])
