"""Write a site's report as one HTML file, from its Markdown and figures.

write_html.py --plan results/SITE/plan/page.json --report report/SITE/report.md --out report/SITE/report.html
"""

from perfscribe.base import files
from perfscribe.base.one_line import in_one_line, paths
from perfscribe.records import checksums
from perfscribe.report import html

if __name__ == "__main__":
    with in_one_line("write_html", ValueError):
        args = paths(__doc__, "--plan", "--report", "--out")
        files.write_text(args.out, html.write(args.report.parent))
        checksums.keep(args.plan.parents[1], "page", [args.out])
