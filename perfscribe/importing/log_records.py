"""`./run import-log FILE.out`: what a log of somebody else's training tells becomes records of origin `imported`."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from perfscribe import called_from, fingerprint, journal, records, session
from perfscribe.importing import trainer_log, wandb_csv
from perfscribe.importing.history import History
from perfscribe.plan_cells import measure_module

EXPERIMENT = "imported_logs"
CODE = Path(__file__).resolve().parents[2]
LARGEST_MIB = 256
LONGEST_NAME = 80


def read(path: Path) -> list[History]:
    """The trainings that a file tells of. ValueError, one line: it cannot be read, or tells of none."""
    try:
        if path.stat().st_size > LARGEST_MIB * 2**20:
            raise ValueError(f"{path}: larger than {LARGEST_MIB} MiB")
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if b"\0" in content:
        raise ValueError(f"{path}: no text")
    text = content.decode("utf-8-sig", errors="replace")
    try:
        found = wandb_csv.parse(text, path.stem) if wandb_csv.is_export(text) else [trainer_log.parse(text, path.stem)]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    found = [history for history in found if not history.is_empty]
    if not found:
        raise ValueError(f"{path}: neither a line of Trainer's metrics ({{'eval_loss': ...}}) nor a CSV export of W&B")
    return found


def record_of(history: History, path: Path) -> dict[str, Any]:
    """A history as a record; the file is named without its folder."""
    factors = {"log": _name(history.name)}
    told = [history.values(), history.series()]
    key = hashlib.sha256(repr([EXPERIMENT, factors, told]).encode()).hexdigest()[:16]
    return records.make(
        {
            "experiment": EXPERIMENT,
            "key": key,
            "round": 1,
            "factors": factors,
            "status": "ok",
            "origin": "imported",
            "values": {"file": path.name, **told[0]},
            "series": told[1],
            "flags": [f"left out: {', '.join(history.dropped[:5])}, no finite numbers"] if history.dropped else [],
            "fingerprint": fingerprint.fingerprint(measure_module(EXPERIMENT), CODE),
            "provenance": {"time": records.now_utc()},
        }
    )


def _name(text: str) -> str:
    return re.sub(r"[^\w .,=+()-]", "_", text).strip()[:LONGEST_NAME] or "log"


def keep(root: Path, site: str, found: list[dict[str, Any]]) -> int:
    """Write the records into the site's journal, those of the same names given up; returns how many are new.

    AnotherRun: a run is under way in this checkout.
    """
    results = root / "results" / site
    lock = session.RunLock(root / ".perfscribe" / "run.lock")
    if not lock.try_acquire():
        raise session.AnotherRun(f"another run is under way in this checkout: {lock.owner()}")
    try:
        folder = results / "journal" / EXPERIMENT
        new = 0
        with journal.Journal(folder / "imported.jsonl") as book:
            standing = list(journal.read(folder).all_records())
            for record in found:
                same = [one for one in standing if one["factors"] == record["factors"]]
                if any(one["key"] == record["key"] for one in same):
                    continue
                book.record(record)  # before the other is given up: nothing is lost in between
                if same:
                    book.retire(same, "imported anew")
                standing = [one for one in standing if one not in same] + [record]
                new += 1
        # Without its records file the job is due, which writes them anew from the journal.
        for path in (results / "records" / EXPERIMENT).glob("*.jsonl"):
            path.unlink()
    finally:
        lock.release()
    return new


def main(root: Path, site: str, arguments: list[str]) -> int:
    """Import files; ValueError with one line where one of them cannot be, and then none is."""
    if not arguments:
        raise ValueError("import-log: say which file, as in `./run import-log logs/BLOOM_Baseline_123.out`")
    if session.is_committed(root, site):
        raise ValueError(f"import-log: site {site} was published and is read-only")
    paths = [called_from.file(argument) for argument in arguments]
    try:
        made = [record_of(history, path) for path in paths for history in read(path)]
    except ValueError as error:
        raise ValueError(f"import-log: {error}") from None
    made = list({record["factors"]["log"]: record for record in made}.values())
    new = keep(root, site, made)
    for record in made:
        print(_told(record))
    print(f"records of origin imported: {new} new; `./run report` shows them in chapter fsdp")
    return 0


def _told(record: dict[str, Any]) -> str:
    values, series = record["values"], record["series"]
    counts = f"{len(series.get('train_loss', []))} training losses, {len(series.get('eval_loss', []))} evaluations"
    known = {"mean train loss": "mean_train_loss", "steps": "steps", "runtime (s)": "train_runtime_s"}
    figures = "".join(f", {title} {values[name]:g}" for title, name in known.items() if name in values)
    return f"{record['factors']['log']}: {counts}{figures}"
