"""Generates one data set: generate_data.py --plan results/SITE/plan/data-NAME.json

Writes its formats into results/SITE/data/NAME and, last, NAME.digest next to that folder.
"""

from perfscribe.base.files import read_json
from perfscribe.base.one_line import in_one_line, paths
from perfscribe.data.generate import generate
from perfscribe.records import checksums

if __name__ == "__main__":
    with in_one_line("generate_data", ValueError, TypeError):
        arguments = paths(__doc__, "--plan")
        plan = read_json(arguments.plan)
        folder = arguments.plan.parents[1] / "data" / str(plan["dataset"])
        digest = generate(plan, folder)
        made = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        checksums.keep(arguments.plan.parents[1], arguments.plan.stem, [digest, *made])
        print(f"wrote {digest}")
