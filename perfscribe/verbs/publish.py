"""`./run publish NAME`: turns local results into a site that can be committed, without private data.

Measurements are copied: plan, known fields of the journal (compressed) and of environments, digests of data sets; all
texts are scrubbed. Tables, figures and report are drawn again from these, so that any machine can reproduce them.
Records repeat the journal, so they are not committed, but made again when needed. Notes about the local site are copied
and scrubbed, too.
"""

import contextlib
import gzip
import re
import secrets
import shutil
import signal
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from perfscribe import __version__
from perfscribe.base import called_from, files
from perfscribe.config.top import NO_SITES
from perfscribe.plan import cluster, plan
from perfscribe.records import form, journal, provenance, records, scrub
from perfscribe.run import session
from perfscribe.show.provenance import NODE_NUMBER
from perfscribe.verbs import redrawing

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
LARGEST_MIB = 5


def main(root: Path, arguments: Sequence[str], config: session.ReadConfig) -> int:
    """Publish, redraw or continue a site, as the first argument says; ValueError (one line) on failure.

    --replace: replace the site of that name.
    """
    option = arguments[0] if arguments else ""
    if option == "--redraw":
        return redrawing.main(root, config(), arguments[1:])
    if option == "--continue":
        return go_on(root, arguments[1:])
    replaces = option == "--replace"
    arguments = arguments[replaces:]
    if len(arguments) != 1 or not NAME.fullmatch(arguments[0]):
        raise ValueError("publish: one name is needed, of lower-case letters, digits, - and _, as in `publish h200`")
    name = arguments[0]
    if name in (*NO_SITES, session.LOCAL_SITE):
        raise ValueError(f"publish: {name} is a folder of the project; take another name")
    source, target = root / "results" / session.LOCAL_SITE, root / "results" / name
    if not all(map(Path.exists, (source / "plan" / "index.json", source / "journal"))):
        raise ValueError(f"publish: there are no results of site {session.LOCAL_SITE} to publish as {name}")
    taken = [f"{parent}/{name}" for parent in ("results", "report") if (root / parent / name).exists()]
    if replaces and not session.is_committed(root, name):
        raise ValueError(f"publish: there is no published site {name} to replace; publish {name} makes one")
    if taken and not replaces:
        other = f"publish --replace {name}" if session.is_committed(root, name) else "move that away"
        raise ValueError(f"publish: {' and '.join(taken)}: there already; take another name or {other}")
    _read_notes(root, session.LOCAL_SITE)  # check before other work: they may not be text
    made_by, before = provenance.collect(root), _with_figures(target)
    with made_whole(root, name, taken):
        copy_measured(root, source, target, plan.read_index(source / "plan").shards)
        origin = {"version": __version__, "commit": made_by["commit"], "dirty": made_by["dirty"]}
        files.write_json(target / "published.json", origin)
        redrawing.main(root, config(), [name])
    if (now := _with_figures(target)) < before:
        print(f"publish: {name} had figures of {before} cells, now of {now}: all that the report of site local has")
    return _check(root, name)


def _with_figures(results: Path) -> int:
    """Number of cells with figures in a site's summary."""
    with form.as_written(results / "summary.json"):
        return int(files.read_object(results / "summary.json").get("cells", {}).get("ok", 0))


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _end(number: int, _: object) -> NoReturn:
    for other in ENDING:  # ignore further signals while ending
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


@contextlib.contextmanager
def made_whole(root: Path, name: str, taken: Collection[str]) -> Iterator[None]:
    """Make the site completely or not at all: on errors and signals, restore the folders that it replaces."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    aside = root / f".replaced-{secrets.token_hex(4)}"
    try:
        for folder in taken:
            (aside / folder).parent.mkdir(parents=True)
            shutil.move(root / folder, aside / folder)  # atomic within a file system
        yield
    except BaseException:
        for folder in (f"results/{name}", f"report/{name}"):
            if folder not in taken or (aside / folder).exists():
                shutil.rmtree(root / folder, ignore_errors=True)
            if (aside / folder).exists():
                shutil.move(aside / folder, root / folder)
        shutil.rmtree(aside, ignore_errors=True)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def go_on(root: Path, names: Sequence[str]) -> int:
    """Copy a published site's journals to site local, so that a run measures what is missing."""
    if len(names) != 1 or not session.is_committed(root, names[0]):
        raise ValueError(f"publish: --continue expects one published site, not {' '.join(names) or 'none'}")
    source, target = root / "results" / names[0], root / "results" / session.LOCAL_SITE
    with session.alone(root):
        if (target / "journal").exists():
            raise ValueError("publish: site local has results of its own; move results/local away first")
        for path in source.glob("journal/*/*.jsonl.gz"):
            files.write_bytes(target / "journal" / path.parent.name / path.stem, gzip.decompress(path.read_bytes()))
        shutil.copytree(source / "environments", target / "environments", dirs_exist_ok=True)
    print(f"site local goes on where {names[0]} stands; `./run report` measures what is missing")
    return 0


def copy_measured(root: Path, source: Path, target: Path, planned: Collection[str]) -> None:
    """Copy a site's plan, journals, environments and data digests, scrubbed and renamed.

    planned: experiments whose journals are copied; others are not shown.
    """
    with session.alone(root):
        folders = sorted((source / "journal").iterdir())
        journals = {
            folder.name: list(journal.read(folder).all_records()) for folder in folders if folder.name in planned
        }
        # Collect all node names first: any experiment's errors may contain any of them.
        private = scrub.gather(journals, scrub.private_here(root))
        number_nodes(record for group in journals.values() for record in group)
        for experiment, kept in journals.items():
            of_report = _as_shown(kept, _shown(source / "records" / experiment))
            lines = [{"event": "record", **scrub.published(record, private)} for record in of_report]
            content = gzip.compress(b"".join(map(journal.as_line, lines)), mtime=0)
            files.write_bytes(target / "journal" / experiment / "0.jsonl.gz", content)
        for kind in ("plan", "environments"):
            for path in sorted((source / kind).glob("*.json")):
                # Not needed for drawing: accounts, paths of programs and of users' code.
                if path.name in (cluster.FILE, "options.json"):
                    continue
                fields = scrub.scrub_json(files.read_json(path), private)
                known = {name: value for name, value in fields.items() if kind == "plan" or name in scrub.ENVIRONMENT}
                site = {"site": target.name} if "site" in known else {}
                files.write_json(target / kind / path.name, known | site)
        for path in sorted((source / "data").glob("*.digest")):
            (target / "data").mkdir(exist_ok=True)
            shutil.copyfile(path, target / "data" / path.name)
        copy_notes(root, source.name, target.name, private)


def _shown(folder: Path) -> list[dict[str, Any]]:
    """Rows of an experiment's tables; unreadable files are skipped. folder: its records."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.jsonl")):
        with contextlib.suppress(ValueError):
            rows += records.rows_of(path)
    return rows


def _as_shown(kept: Sequence[dict[str, Any]], rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop records of other code, seed or data than their cell's in the report; sort those that it shows last.

    The published site shows the last record of a cell, e.g. if two machines measured it. A cell that is not_run in the
    report, since its code changed, must not show the old code's results.
    """
    keys, shown = {}, set[str]()
    for row in rows:
        keys[_cell(row)] = row["key"]
        shown.add(row["id"])
    mine = [record for record in kept if keys.get(_cell(record), record["key"]) == record["key"]]
    return sorted(mine, key=lambda record: record["id"] in shown)


def _cell(record: Mapping[str, Any]) -> tuple[str, int]:
    return files.canonical(record["factors"]), record["round"]


def _notes(root: Path, site: str) -> Path:
    return root / "report" / "notes" / site


def _read_notes(root: Path, site: str) -> dict[str, str]:
    """Notes about a site by file name; ValueError (one line) if one is not text."""
    try:
        return {path.name: called_from.text(path, root) for path in sorted(_notes(root, site).glob("*.md"))}
    except ValueError as error:
        raise ValueError(f"publish: {error}") from None


def copy_notes(root: Path, source: str, target: str, private: scrub.Private) -> None:
    """Copy notes to another site, scrubbed; existing ones are kept."""
    for name, text in _read_notes(root, source).items():
        path, shown = _notes(root, target) / name, f"report/notes/{target}/{name}"
        if path.exists():
            print(f"publish: {shown} was there and stays as it is")
            continue
        scrubbed = scrub.scrub_text(text, private)
        files.write_bytes(path, scrubbed.encode())
        replaced = ", names and paths of this machine replaced: read it" if scrubbed != text else ""
        print(f"publish: {shown} is that of site {source}{replaced}")


def number_nodes(records: Iterable[dict[str, Any]]) -> None:
    """Number a cluster's nodes in the order of their names, to distinguish them without names.

    Removes job ids, from which users of the cluster could find the names in its accounting.
    """
    jobs = [record["provenance"] for record in records if record["provenance"].get("cluster")]
    numbers = {node: number for number, node in enumerate(sorted({job["node"] for job in jobs}), start=1)}
    for job in jobs:
        job[NODE_NUMBER] = numbers[job["node"]]
        job["slurm_job_id"] = None


def committed_mib(folders: Iterable[Path]) -> float:
    """Size of committed files: excludes records, which repeat the journals, and HTML, which any machine can make."""
    paths = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    committed = (path for path in paths if path.parents[1].name != "records" and path.suffix != ".html")
    return sum(path.stat().st_size for path in committed) / 2**20


def _check(root: Path, name: str) -> int:
    """Print the next step; return 1 if the site has private data or is too large to commit."""
    notes = [_notes(root, name)] if _notes(root, name).is_dir() else []
    folders = [root / "results" / name, root / "report" / name, *notes]
    findings = [finding for folder in folders for finding in scrub.find_private(folder, scrub.private_here(root))]
    for finding in findings[:20]:
        print(f"publish: {finding}", file=sys.stderr)
    size_mib = committed_mib(folders)
    if size_mib > LARGEST_MIB:
        print(f"publish: {size_mib:.1f} MiB, allowed are {LARGEST_MIB}", file=sys.stderr)
    if findings or size_mib > LARGEST_MIB:
        return 1
    named = " ".join(folder.relative_to(root).as_posix() for folder in [*folders, root / "report" / "README.md"])
    print(f"published: {size_mib:.1f} MiB; commit it with `git add {named}`")
    return 0
