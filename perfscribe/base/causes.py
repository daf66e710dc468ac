"""Finds the line that states the cause in an error's text or a failed program's output.

Wrappers put it anywhere: data loader workers after their traceback, compilers inside their output, launchers of ranks
above a summary, programs above their usage. Measuring code imports this module, so it must stay small.
"""

import re
import subprocess
from collections.abc import Iterable, Iterator

_LAUNCHER = re.compile(r"(rank \d+ of \d+|\S+ (left with exit code \d+|died by \w+)): ")
_WRAPPER = re.compile(
    r"Caught \w+ in .* process|:$|\bcompile error$|^\S+ (left with exit code \d+|died by \w+): |^\S*[cg]\+\+\S* -"
)
_TRACEBACK = re.compile(r"(Original )?Traceback \(most recent call last\):")
_GOES_ON = ("During handling of the above", "The above exception was")  # the next error is the one that counts
_OF_RANK = re.compile(r"^(\[(rank ?)?\d+\]: ?|\d+: )")  # prefix that launchers put before a rank's line
_NOISE = re.compile(r"[=*~-]+$|usage:|try '|for (more|usage)|see ", re.IGNORECASE)
_RULE = re.compile(r"[=-]{20,}$")
_COMPLAINT = re.compile(
    r"\berror\b|unrecogni[sz]ed|\b(un|not |in)(able|found|valid|supported|known)\b|\bcannot\b|\bfail(ed|ure)\b"
    r"|no such|denied|refused|out of memory",
    re.IGNORECASE,
)


def of_exception(error: BaseException) -> str:
    """Return the first line of an exception's text, or of the error that it wraps; empty if there is no text."""
    text = str(error).strip()
    if isinstance(error, subprocess.CalledProcessError):
        words = error.cmd if isinstance(error.cmd, str) else str((error.cmd or ["a program"])[0])
        streams = [stream for stream in (error.stderr, error.output) if stream]
        printed = [part if isinstance(part, str) else part.decode(errors="replace") for part in streams]
        text = "\n".join([f"{words} ended with exit status {error.returncode}:", *printed])
    first, _, rest = text.partition("\n")
    if not _WRAPPER.search(first := first.strip()):
        return first
    lines = "\n".join([rest, *map(str, getattr(error, "__notes__", ()))]).splitlines()
    cause = of_output(lines, 0 if first.endswith(":") else -1)
    kept = f"{first} " if first.endswith(":") else launcher[0] if (launcher := _LAUNCHER.match(first)) else ""
    return kept + cause if cause else first.rstrip(":")


def of_output(lines: Iterable[str], otherwise: int = -1) -> str:
    """Return the line of a program's output that states the error; empty if there is no text.

    In order of preference: the last line of a Python traceback (of several processes, the first one's), the first
    complaint, the first line below a rule (as launchers print), else the line at index `otherwise`.
    """
    bare = [_OF_RANK.sub("", line.rstrip()) for line in lines]
    raised = next((line for line in _raised(bare) if line and not _WRAPPER.search(line)), "")
    kept = [line.strip() for line in bare if line.strip() and not _NOISE.match(line.strip())]
    complaint = next((line for line in kept if _COMPLAINT.search(line) and not _WRAPPER.search(line)), "")
    rule = next((place for place, line in enumerate(bare) if _RULE.match(line)), None)
    framed = "" if rule is None else next((line.strip() for line in bare[rule + 1 :] if line.strip()), "")
    return raised or complaint or framed or (kept[otherwise] if kept else "")


def _raised(lines: list[str]) -> Iterator[str]:
    """Yield each traceback's final line (type and text), of a chain only the last; empty where there is none."""
    within, ending = False, ""
    for line in lines:
        if _TRACEBACK.match(line.strip()) or (ending and line and not line.startswith(_GOES_ON)):
            yield ending
            within, ending = bool(_TRACEBACK.match(line.strip())), ""
        elif line.startswith(_GOES_ON):
            ending = ""
        elif within and line and not line[0].isspace():
            within, ending = False, line
    yield ending
