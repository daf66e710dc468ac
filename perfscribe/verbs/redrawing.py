"""`./run publish --redraw [SITE ...]`: draw published sites again from their journals, in a few processes.

What comes out is what the workflow makes of the same site: the same functions and programs make it. The workflow has a
job for each experiment; that is right where an edit touches one of them, and most of the time where all of several
sites is drawn. A site's HTML is not committed and not made here: the workflow makes it of the report, for who reads it.
"""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfscribe.plan import fingerprint, plan
from perfscribe.plan.cache import Memory
from perfscribe.report import sites
from perfscribe.run import session, shard
from perfscribe.show.drawn import PUBLISHED

# Where libraries' warnings go, as those of a rule go into its log.
LOG = Path("logs") / "redraw.log"


@dataclass(frozen=True)
class Site:
    """A published site that is drawn: where it lies and its plan of today."""

    root: Path
    plan: plan.Plan

    @property
    def results(self) -> Path:
        """Its results folder."""
        return self.root / "results" / self.plan.site

    def records(self, experiments: Sequence[str]) -> list[Path]:
        """Records files of these experiments."""
        folder = self.results / "records"
        return [folder / name / f"{number}.jsonl" for name in experiments for number in range(self.plan.shards[name])]


def main(root: Path, raw: Mapping[str, Any], names: Sequence[str]) -> int:
    """Draw these published sites, or all; ValueError with one line where one is none, AnotherRun."""
    known = sorted(path.parent.name for path in (root / "results").glob(f"*/{PUBLISHED}"))
    for name in names:
        if name not in known:
            raise ValueError(f"publish: {name!r} is no published site; there are: {', '.join(known) or 'none'}")
    with session.alone(root):
        redraw(root, raw, names or known)
        sites.refresh(root)
    return 0


def redraw(root: Path, raw: Mapping[str, Any], names: Sequence[str]) -> None:
    """Draw published sites; whatever an experiment's code raises."""
    memory = session.memory_of_code(root)  # of all sites, which share most of what draws them
    _import_what_draws()
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    # Forked with the first task, so that the libraries are imported once; no thread runs yet.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, context, initializer=_warn_into, initargs=(root / LOG,)) as pool:
        drawn = []
        for name in names:  # the first is drawn while the next is planned
            site = _planned(root, raw, name, memory)
            _replay(site, root / LOG)
            drawn.append((site, [pool.submit(_present, site, experiment) for experiment in _slowest_first(site)]))
        memory.save()
        written = {}
        for site, tasks in drawn:
            for task in tasks:
                task.result()
            written[site.plan.site] = pool.submit(_write, site)
        for name, report in written.items():
            report.result()
            print(f"report/{name}/report.md", flush=True)


def _warn_into(log: Path) -> None:
    """Send this process's standard error there; what goes wrong is raised where the process was started."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as stream:
        os.dup2(stream.fileno(), 2)


def _planned(root: Path, raw: Mapping[str, Any], name: str, memory: Memory) -> Site:
    """The site with its plan of today, written."""
    config = {**raw, "site": name}
    made = session.plan_with(memory, root, config)
    session.write_plan(root, config, made)
    fingerprint.forget_trees()  # before processes fork, which would go through them again and again
    gc.freeze()
    # Units stay in files: what goes to another process is small.
    return Site(root, replace(made, units={}))


def _import_what_draws() -> None:
    """Before the processes fork."""
    from perfscribe.report import report  # noqa: F401 (imported for those who fork)
    from perfscribe.show import presenting  # noqa: F401 (imported for those who fork)

    gc.freeze()
    gc.set_threshold(200_000, 20, 100)  # most of what drawing makes in between goes without the collector


def _slowest_first(site: Site) -> list[str]:
    """Its experiments, those with most figures first: what is begun last is soon done."""
    shown = site.plan.presentations
    return sorted(shown, key=lambda name: (-len(shown[name].figures), name))


def _replay(site: Site, log: Path) -> None:
    """Its records from its journal, in this process: quicker than waiting for others."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as stream, redirect_stderr(stream):
        for out in site.records(list(site.plan.shards)):
            plan_file = site.results / "plan" / f"measure-{out.parent.name}-{out.stem}.json"
            shard.Shard(plan_file, site.root).write_records(out, identity=None)


def _present(site: Site, name: str) -> None:
    from perfscribe.show import presenting

    plan_file = site.results / "plan" / f"present-{name}.json"
    presenting.present(plan_file, site.records(site.plan.sources(name)), site.root)


def _write(site: Site) -> None:
    """The report and the verdict, by the workflow's own programs; ValueError where one fails."""
    records = site.records(list(site.plan.shards))
    report = site.root / "report" / site.plan.site / "report.md"
    plan_file, verdict = site.results / "plan" / "report.json", site.results / "verdict.txt"
    written: list[str | Path] = ["--out", report, "--summary", site.results / "summary.json"]
    programs: dict[str, list[str | Path]] = {
        "report.py": ["--plan", plan_file, "--records", *records, *written],
        "verdict.py": ["--report", report, "--records", *records, "--out", verdict],
    }
    for name, words in programs.items():
        if complaint := _run_program(site.root / "workflow" / "scripts" / name, words):
            raise ValueError(f"publish: {site.plan.site}: {complaint}")


def _run_program(program: Path, words: Sequence[str | Path]) -> str:
    """Run it in this process, which has its libraries already; what it said where it failed, else nothing."""
    said = io.StringIO()
    before, sys.argv = sys.argv, [str(word) for word in (program, *words)]
    try:
        with redirect_stdout(said), redirect_stderr(said):
            runpy.run_path(str(program), run_name="__main__")
    except SystemExit as end:
        # Without a text it has said why, and an exit status.
        return "" if not end.code else end.code if isinstance(end.code, str) else said.getvalue().strip()
    finally:
        sys.argv = before
    return ""
