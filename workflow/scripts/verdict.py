"""Judge whether a run can be trusted: exit status 1 if all measured cells of an experiment failed, a self-test before
trainings did, or a chapter's file has a mistake.

verdict.py --records FILE [FILE ...] --summary FILE --out FILE
"""

import sys

from perfscribe.base import files
from perfscribe.base.one_line import in_one_line, paths
from perfscribe.records import form, records
from perfscribe.run import gate

BAD = ("failed", "timeout")


def broken(rows: list[dict]) -> str:
    """Return the first error if all cells that ran failed; "" if one gave a result."""
    ran = [row for row in rows if row["status"] in form.RAN]
    if not ran or any(row["status"] not in BAD for row in ran):
        return ""
    first, cells = ran[0], {files.canonical(row["factors"]) for row in ran}
    factors = " ".join(f"{name}={level}" for name, level in first["factors"].items())
    error = f"{factors}: {first['status']}: {first['reason']}"
    return f"{first['experiment']}: all {len(cells)} cells failed; first: {error}"


if __name__ == "__main__":
    with in_one_line("verdict"):
        args = paths(__doc__, "--records", "--summary", "--out")
        by_experiment: dict[str, list[dict]] = {}
        refused: dict[str, None] = {}
        held_back: dict[str, None] = {}
        for path in args.records:
            of = by_experiment.setdefault(path.parent.name, [])
            for row in records.rows_of(path):
                complaint = gate.complaint(row)
                refused[complaint] = None
                if complaint and row["status"] == gate.HELD_BACK:
                    held_back[row["experiment"]] = None
                of.append({name: row[name] for name in ("experiment", "factors", "status", "reason")})
        errors = [error for error in map(broken, by_experiment.values()) if error]
        errors += [text for text in refused if text]
        again = "when the links work: ./run remeasure {} status=skipped, then ./run report"
        errors += map(again.format, held_back)
        errors += files.read_json(args.summary).get("mistakes", [])
        if errors:
            sys.exit("\n".join(errors))
        files.write_text(args.out, "no experiment is broken\n")
