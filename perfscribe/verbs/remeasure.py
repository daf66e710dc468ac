"""`./run remeasure`: discards finished cells, so that the next report measures them again."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from perfscribe.base import files, registry
from perfscribe.config.errors import hint
from perfscribe.plan.fingerprint import Sources
from perfscribe.records import checksums, journal
from perfscribe.records.form import STATUSES
from perfscribe.run import session

# Statuses without records to retire: cells not measured, or held back by a self-test.
DUE_AGAIN = ("not_run", "skipped")


def parse(words: Sequence[str]) -> dict[str, str]:
    """Parse FACTOR=LEVEL words; ValueError for any other word, and for duplicates."""
    chosen: dict[str, str] = {}
    for word in words:
        name, equals, level = word.partition("=")
        if not equals or not name or not level:
            raise ValueError(f"remeasure: {word!r} is not FACTOR=LEVEL")
        if name in chosen:
            raise ValueError(f"remeasure: {name} is given twice")
        chosen[name] = level
    return chosen


def _codes(root: Path, site: str, experiment: str) -> set[str]:
    """Fingerprints of today's and the last plan's code; records of other code are kept for comparisons."""
    plans = (root / "results" / site / "plan").glob(f"measure-{experiment}-*.json")
    return {str(files.read_json(plan)["fingerprint"]) for plan in plans} | {
        Sources(root).fingerprint(registry.module_name(experiment, "measure", root))
    }


def _levels(record: dict[str, Any]) -> dict[str, str]:
    """Factor levels of a record as a user writes them, and its status."""
    return {name: str(level) for name, level in record["factors"].items()} | {"status": record["status"]}


def _check(word: str, known: Iterable[str], complaint: str) -> None:
    """Raise ValueError with the complaint, known words and the nearest of them, if the word is unknown."""
    names = list(dict.fromkeys(known))
    if word in names:
        return
    raise ValueError(f"remeasure: {complaint}; known: {', '.join(names) or 'none'}{hint(word, names)}")


def select(records: list[dict[str, Any]], chosen: dict[str, str]) -> list[dict[str, Any]]:
    """Records that have all the chosen levels; ValueError for an unknown factor or level."""
    have = [_levels(record) for record in records]
    for name, level in chosen.items() if have else ():
        _check(name, ["status", *(known for levels in have for known in levels)], f"no cell has the factor {name!r}")
        known_levels = STATUSES if name == "status" else [levels[name] for levels in have if name in levels]
        _check(level, known_levels, f"no cell has {name}={level}")
    return [
        record
        for record, levels in zip(records, have, strict=True)
        if all(levels.get(n) == v for n, v in chosen.items())
    ]


def main(root: Path, arguments: Sequence[str], config: session.ReadConfig) -> int:
    """Retire the matching records of one experiment; ValueError if none match."""
    at = list(arguments).index("--config") if "--config" in arguments else len(arguments)
    arguments, site = arguments[:at], session.site_of(config(arguments[at:]))
    if not arguments:
        raise ValueError("remeasure: say which experiment, as in `./run remeasure attention seq_len=1024`")
    if session.is_committed(root, site):
        raise ValueError(f"remeasure: site {site} was published and is read-only")
    experiment, chosen = arguments[0], parse(arguments[1:])
    results = root / "results" / site
    measured = sorted(path.name for path in (results / "journal").glob("*"))
    _check(experiment, measured, f"nothing was measured of {experiment!r}")
    folder = results / "journal" / experiment
    with session.alone(root), journal.Journal(folder / "0.jsonl") as book:
        codes = _codes(root, site, experiment)
        records = [r for r in journal.read(folder).all_records() if r["fingerprint"] in codes]
        finished = [r for r in records if not r["values"].get("before_start")]
        given_up = select(finished, chosen)
        if not given_up and chosen.get("status") not in DUE_AGAIN:
            raise ValueError(f"remeasure: there is no record of {' '.join(arguments)}")
        # All shards become due, for `not_run` cells too; before retiring, so that a retired cell always has a job.
        units = [path.stem for path in (results / "checksums").glob(f"measure-{experiment}-*.json")]
        checksums.forget(results, units)
        book.retire(given_up, "remeasure " + " ".join(arguments))

    option = "" if site == session.LOCAL_SITE else f" --config site={site}"
    print(
        f"records of {experiment} retired: {len(given_up)}; the next `./run report{option}` measures their cells again"
    )
    return 0
