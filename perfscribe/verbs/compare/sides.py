"""Where a side of a comparison is read from: a site's folder, a git revision of one, what a commit measured."""

from __future__ import annotations

import difflib
import io
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from perfscribe.base import files
from perfscribe.plan.plan_cells import cell_key
from perfscribe.records import journal
from perfscribe.run import session
from perfscribe.run.shard import Shard
from perfscribe.show.drawn import PUBLISHED
from perfscribe.show.provenance import commit_name
from perfscribe.verbs.compare.cells import Cell, Side, key_of, of_rows

SITE = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
# What of a site is measured; the rest is drawn from it.
PARTS = ("plan", "journal", "environments", "data", PUBLISHED)


def read(root: Path, name: str) -> Side:
    """A side by the name that a user gives: SITE, SITE@REVISION, local@COMMIT or COMMIT; ValueError with one line."""
    site, at, revision = name.partition("@")
    known = sites(root)
    if not at and name in known:
        return of_folder(root / "results" / name, name, name)
    if not at and session.LOCAL_SITE in known and (found := _commits(root, name)):
        return _of_commit(root, name, found)
    if not at or not SITE.fullmatch(site) or not revision:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(
            f"compare: {name!r} is no site, SITE@REVISION or commit of site {session.LOCAL_SITE};"
            f" sites here: {', '.join(known) or 'none'}{hint}"
        )
    if site == session.LOCAL_SITE:
        commits = _commits(root, revision)
        if not commits:
            measured = sorted({commit_name(row["provenance"]) for row in _local_records(root)})
            told = f"it has those of {', '.join(measured)}" if measured else "it has none"
            raise ValueError(f"compare: {name}: site {site} holds no records of {revision!r}; {told}")
        return _of_commit(root, name, commits)
    return _of_revision(root, name, site, revision)


def sites(root: Path) -> list[str]:
    """Names of the sites that hold results, sorted."""
    return sorted(path.parents[1].name for path in (root / "results").glob("*/plan/index.json"))


def of_folder(folder: Path, name: str, site: str) -> Side:
    """What stands in a site's journal for the cells of its plan."""
    cells: dict[str, dict[str, Cell]] = {}
    for experiment, plans in _plans(folder).items():
        rows: list[Mapping[str, Any]] = []
        history = journal.read(folder / "journal" / experiment)
        for path in plans:
            shard = Shard(path, folder, folder)
            rows += [shard.row(task, history, None) for task in shard.tasks]
        seed = files.read_json(plans[0])["seed"]
        cells[experiment] = of_rows(experiment, sorted(rows, key=lambda row: int(row["order"])), seed)
    return Side(name, site, cells, identities(folder))


def identities(folder: Path) -> dict[str, Mapping[str, Any]]:
    """A site's identities by id."""
    return {path.stem: files.read_object(path) for path in sorted((folder / "environments").glob("*.json"))}


def _plans(folder: Path) -> dict[str, list[Path]]:
    """Plan files of what a site measures, by experiment."""
    found: dict[str, list[Path]] = {}
    for path in sorted((folder / "plan").glob("measure-*.json")):
        experiment = path.stem.removeprefix("measure-").rpartition("-")[0]
        found.setdefault(experiment, []).append(path)
    return found


# --- records of site local, by the commit that measured them ----------------------------------------------------


def _local_records(root: Path) -> list[dict[str, Any]]:
    """Every record that stands in site local's journals."""
    folder = root / "results" / session.LOCAL_SITE / "journal"
    return [row for path in sorted(folder.glob("*")) for row in journal.read(path).all_records()]


def _commits(root: Path, word: str) -> list[dict[str, Any]]:
    """Records of site local that a commit measured, named as git does or by its first digits; + as in reports."""
    dirty, revision = word.endswith("+"), word.removesuffix("+")
    commit = _resolved(root, revision) or revision
    if not re.fullmatch(r"[0-9a-f]{7,40}", commit):
        return []
    return [
        row
        for row in _local_records(root)
        if str(row["provenance"].get("commit") or "").startswith(commit)
        and bool(row["provenance"].get("dirty")) == dirty
    ]


def _of_commit(root: Path, name: str, rows: list[dict[str, Any]]) -> Side:
    """The newest of these records for each cell and round."""
    newest: dict[tuple[str, str, int], dict[str, Any]] = {}
    for row in rows:
        slot = (row["experiment"], key_of(row["factors"]), row["round"])
        if slot not in newest or _time(row) >= _time(newest[slot]):
            newest[slot] = row
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for row in newest.values():
        grouped.setdefault(row["experiment"], []).append(row)
    folder = root / "results" / session.LOCAL_SITE
    plans = _plans(folder)
    cells = {
        experiment: of_rows(experiment, of, _seed(plans.get(experiment, []), experiment, of))
        for experiment, of in grouped.items()
    }
    return Side(name, session.LOCAL_SITE, cells, identities(folder))


def _seed(plans: Sequence[Path], experiment: str, rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Today's plan's seed, where the keys of all these records were made with it; they hold it in a digest only."""
    if not plans:
        return None
    seed = int(files.read_json(plans[0])["seed"])
    made = (cell_key(experiment, r["factors"], r["fingerprint"], r["data_digest"], seed) == r["key"] for r in rows)
    return seed if all(made) else None


def _time(row: Mapping[str, Any]) -> str:
    return str(row["provenance"].get("time", ""))


# --- a site at a git revision -----------------------------------------------------------------------------------


def _git(root: Path, *words: str) -> bytes | None:
    """What git prints; None where it fails or is not there, or would answer for a repository further up."""
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _resolved(root: Path, revision: str) -> str:
    """The commit that git knows by this name; empty where it knows none."""
    if revision.startswith("-"):
        return ""
    found = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return (found or b"").decode().strip()


def _of_revision(root: Path, name: str, site: str, revision: str) -> Side:
    """A committed site as it was at a revision."""
    commit = _resolved(root, revision)
    if not commit:
        raise ValueError(f"compare: {name}: git knows no revision {revision!r} here")
    archive = _git(root, "archive", "--format=tar", commit, f"results/{site}")
    if archive is None:
        raise ValueError(f"compare: {name}: there is no results/{site} at {revision}")
    with tempfile.TemporaryDirectory(prefix="perfscribe-compare-") as temporary:
        folder = Path(temporary) / site
        _unpack(archive, PurePosixPath("results") / site, folder)
        if not (folder / PUBLISHED).is_file():
            raise ValueError(f"compare: {name}: results/{site} was no published site at {revision}")
        return of_folder(folder, name, site)


def _unpack(archive: bytes, below: PurePosixPath, folder: Path) -> None:
    """The measured parts of a site out of a tar archive; only regular files, below the folder."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            path = PurePosixPath(member.name)
            stream = members.extractfile(member) if member.isreg() else None
            if stream is None or not path.is_relative_to(below) or ".." in path.parts:
                continue
            inner = path.relative_to(below)
            if inner.parts and inner.parts[0] in PARTS:
                files.write_bytes(folder / inner, stream.read())
