"""`./run remeasure`: give up finished cells on purpose, so that the next report measures them again."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from perfscribe import journal, session


def parse(words: list[str]) -> dict[str, str]:
    """factor=level words as a dict; ValueError for any other word."""
    chosen = {}
    for word in words:
        name, equals, level = word.partition("=")
        if not equals or not name or not level:
            raise ValueError(f"remeasure: {word!r} is not FACTOR=LEVEL")
        chosen[name] = level
    return chosen


def matches(record: dict[str, Any], chosen: dict[str, str]) -> bool:
    """Whether a record has all the chosen levels; status is the record's own."""
    have = {name: str(level) for name, level in record["factors"].items()} | {"status": record["status"]}
    return all(have.get(name) == level for name, level in chosen.items())


def _check_factors(chosen: dict[str, str], records: list[dict[str, Any]]) -> None:
    known = {"status"} | {name for record in records for name in record["factors"]}
    for name in chosen:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"remeasure: no cell has the factor {name!r}; known: {', '.join(sorted(known))}{hint}")


def main(root: Path, site: str, arguments: list[str]) -> int:
    """Retire the matching records of one experiment; ValueError where the words fit nothing."""
    if not arguments:
        raise ValueError("remeasure: say which experiment, as in `./run remeasure attention seq_len=1024`")
    if session.is_committed(root, site):
        raise ValueError(f"remeasure: site {site} was published and is read-only")
    experiment, chosen = arguments[0], parse(arguments[1:])
    folder = root / "results" / site / "journal" / experiment
    history = journal.read(folder)
    records = list(history.all_records())
    if not folder.is_dir():
        known = sorted(path.name for path in folder.parent.glob("*"))
        raise ValueError(
            f"remeasure: nothing was measured of {experiment!r}; measured: {', '.join(known) or 'nothing'}"
        )
    _check_factors(chosen, records)
    given_up = [record for record in records if matches(record, chosen)]
    lock = session.RunLock(root / ".perfscribe" / "run.lock")
    if not lock.try_acquire():
        raise session.AnotherRun(f"another run is under way in this checkout: {lock.owner()}")
    with journal.Journal(sorted(folder.glob("*.jsonl"))[0]) as book:
        number = book.retire(given_up, "remeasure " + " ".join(arguments))
    # Without its records file the shard's job is due again; `not_run` cells come along.
    for path in (root / "results" / site / "records" / experiment).glob("*.jsonl"):
        path.unlink()
    print(f"{number} records of {experiment} retired; the next `./run report` measures their cells again")
    return 0
