"""The output of a training by Trainer: lines that are Python's dicts, progress bars, W&B's summary at the end.

Nothing of it is evaluated: names and numbers are read by their form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfscribe.importing.history import History, summary_name

# A dict of Trainer, which may stand behind a progress bar; the workshop's text leaves parts of it out ("...").
_DICT = re.compile(r"\{('[^{}]*)\}")
# From version 5 of transformers on, numbers stand as text within.
_ENTRY = re.compile(r"'([\w/%. -]+)':\s*'?(-?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|inf|nan))'?")
_BAR = re.compile(r"(\d+)/(\d+)\s+\[(\d+(?::\d+)*)<")
_SUMMARY = re.compile(r"^wandb:\s+([\w/%. -]*[\w%])\s+(-?\d+\.?\d*(?:[eE][+-]?\d+)?)\s*$")
_RUN_NAME = re.compile(r"^wandb: Syncing run (\S+)")
SUMMARY_HEAD = "wandb: Run summary:"


def parse(text: str, name: str) -> History:
    """The training that the output tells of; empty where it tells of none."""
    found, in_summary, bars = History(name), False, dict[int, float]()
    for line in _lines(text):
        for told in _DICT.findall(line):
            found.add({key: float(value) for key, value in _ENTRY.findall(told)})
        for _, total, elapsed in _BAR.findall(line):
            bars[int(total)] = max(bars.get(int(total), 0.0), _seconds(elapsed))
        in_summary = line.startswith(SUMMARY_HEAD) or (in_summary and line.startswith("wandb:"))
        summed = _SUMMARY.match(line) if in_summary else None
        if summed:
            key, unit = summary_name(summed[1])
            found.summary.setdefault(key, float(summed[2]) * unit)
        named = _RUN_NAME.match(line)
        found.name = named[1] if named else found.name
    # The bar of the training lasts longest: those of evaluations are a part of its time.
    found.total_steps = max(bars, key=lambda total: bars[total], default=0)
    return found


def _lines(text: str) -> Iterator[str]:
    """Lines as a terminal would show them one after the other: a bar goes back to the start of its own."""
    for line in re.split(r"[\r\n]+", text):
        yield re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line).strip()


def _seconds(clock: str) -> float:
    total = 0.0
    for part in clock.split(":"):
        total = total * 60 + float(part)
    return total
