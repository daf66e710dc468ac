"""Write a site's report and summary from its tables and figures; remove files that nothing makes any more.

report.py --plan results/SITE/plan/report.json --records FILE [FILE ...] --out report/SITE/report.md
          --summary results/SITE/summary.json
"""

import sys
from pathlib import Path

from perfscribe.base import files
from perfscribe.base.one_line import in_one_line, paths
from perfscribe.records import checksums, records
from perfscribe.report import report

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    with in_one_line("report", ValueError):
        args = paths(__doc__, "--plan", "--records", "--out", "--summary")
        plan = files.read_json(args.plan)
        sources = report.Sources(ROOT, args.plan.parents[1].name, plan, records.load_by_experiment(args.records))
        if lost := report.missing(sources):
            sys.exit("\n".join([*lost, "the next `./run report` copies them from the journal again"]))
        for name in checksums.clear(sources.results):
            print(f"no longer made, removed: {name}")
        pages, short = report.write(sources)
        folder = args.out.parent
        kept = [folder / name for name in pages if name != args.out.name]
        for path in set((folder / "details").glob("*.md")) - set(kept):
            path.unlink()
        for name, text in pages.items():
            files.write_text(folder / name, text)
        files.write_json(args.summary, short)
        checksums.keep(sources.results, args.plan.stem, [args.summary, *kept])
