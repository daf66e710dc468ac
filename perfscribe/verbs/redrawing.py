"""`./run publish --redraw [SITE ...]`: draws published sites again from their journals, one process per site.

Uses the workflow's functions and programs, so the results are the same. The workflow starts one job per experiment,
which suits edits of one experiment, but is slow for several whole sites. HTML is not committed, so the workflow makes
it on demand.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from perfscribe.report import sites
from perfscribe.run import processes, session, shard
from perfscribe.run.targets import Targets


def main(root: Path, raw: Mapping[str, Any], names: Sequence[str]) -> int:
    """Draw these published sites, or all; ValueError (one line) for unknown sites or if another run is under way."""
    known = sorted(path.parent.name for path in (root / "results").glob("*/published.json"))
    for name in names:
        if name not in known:
            raise ValueError(f"publish: {name!r} is no published site; there are: {', '.join(known) or 'none'}")
    chosen = names or known
    with session.alone(root):
        with ProcessPoolExecutor() as pool:
            for name, _ in zip(chosen, pool.map(functools.partial(draw, root, raw), chosen), strict=True):
                print(f"report/{name}/report.md", flush=True)
        sites.refresh(root)
    return 0


def draw(root: Path, raw: Mapping[str, Any], name: str) -> None:
    """Draw a published site by today's plan; passes on exceptions of experiments' code."""
    from perfscribe.show import presenting

    config = {**raw, "site": name}
    planned = session.make_plan(root, config)
    session.write_plan(root, config, planned)
    site, plan = Targets(planned), root / "results" / name / "plan"
    records = [root / path for path in site.records()]
    for out in records:
        shard.Shard(plan / f"measure-{out.parent.name}-{out.stem}.json", root).write_records(out, identity=None)
    for experiment in planned.presentations:
        sources = [root / path for path in site.records_for(experiment)]
        presenting.present(plan / f"present-{experiment}.json", sources, root)
    read: list[str | Path] = ["--records", *records, "--summary", f"{site.results}/summary.json"]
    _run(root, name, "report.py", "--plan", plan / "report.json", *read, "--out", f"{site.report}/report.md")
    _run(root, name, "verdict.py", *read, "--out", f"{site.results}/verdict.txt")


def _run(root: Path, name: str, program: str, *words: str | Path) -> None:
    """Run one of the workflow's programs; ValueError with its stderr if it fails."""
    done = subprocess.run(
        [sys.executable, root / "workflow" / "scripts" / program, *words],
        cwd=root,
        env={**os.environ, "PYTHONPATH": processes.python_path(root)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ValueError(f"publish: {name}: {done.stderr.strip()}")
