"""Write a site's report as one HTML file, from its Markdown and figures.

write_html.py --plan results/SITE/plan/page.json --report report/SITE/report.md --out report/SITE/report.html
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from perfscribe.base import files  # noqa: E402
from perfscribe.base.one_line import in_one_line, paths  # noqa: E402
from perfscribe.records import checksums  # noqa: E402
from perfscribe.report import html  # noqa: E402

if __name__ == "__main__":
    with in_one_line("write_html", ValueError):
        args = paths(__doc__, "--plan", "--report", "--out")
        files.write_text(args.out, html.write(args.report.parent))
        checksums.keep(args.plan.parents[1], "page", [args.out])
