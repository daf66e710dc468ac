"""Records: merged over rounds, loaded in plan order."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from perfscribe.base import files
from perfscribe.records import form, records


def row(n: int = 1, status: str = "ok", number: int = 1, **fields: Any) -> dict[str, Any]:
    """A record of the cell n in one round, as a records file holds it."""
    fields.setdefault("order", n)
    samples = {"time_ms": [float(number), number + 0.5]} if status == "ok" else {}
    own = {"experiment": "probe", "key": f"{n:016x}", "round": number, "factors": {"n": n}, "status": status}
    own |= {"reason": "" if status == "ok" else f"why {number}", "samples": samples, "fingerprint": f"{number:016x}"}
    own["environment"] = "" if status in ("skipped", "not_run") else "0123456789ab"
    return records.make(own | fields)


@pytest.mark.parametrize("statuses", [*itertools.combinations(form.STATUSES, 2)])
def test_the_worst_status_of_a_cell_wins(statuses: tuple[str, str]) -> None:
    rounds = [row(status=status, number=number) for number, status in enumerate(statuses, start=1)]
    shown = 0 if statuses[1] == "not_run" else 1  # rounds still to come hide none that was measured
    for order in (rounds, reversed(rounds)):
        [merged] = records.merge_rounds(order)
        assert (merged.status, merged.reason) == (statuses[shown], rounds[shown]["reason"])
        assert merged.samples == ({"time_ms": [[1.0, 1.5]]} if statuses[0] == "ok" else {})
        # a cell that is skipped has no rounds
        assert merged.flags == ([] if shown or statuses[0] == "skipped" else ["1 of 2 rounds"])


def test_what_rounds_have_apart_is_put_together() -> None:
    error = {"requested_bytes": 5}
    rounds = [
        row(number=1, environment="b" * 12, flags=["busy", "hot"], provenance={"commit": "c1"}),
        row(number=2, environment="a" * 12, flags=["busy"], provenance={"commit": "c2"}),
        row(number=3, status="oom", environment="a" * 12, provenance={"error": error}),
    ]
    [merged] = records.merge_rounds(rounds)
    assert merged.environments == ["a" * 12, "b" * 12]
    assert merged.flags == ["busy", "hot"]
    assert merged.provenances == [{"commit": "c1"}, {"commit": "c2"}], "each round's commit is told"
    assert (merged.status, merged.error) == ("oom", error)


def test_cells_of_all_shards_stand_in_the_order_of_the_plan(tmp_path: Path) -> None:
    rows = [row(n, "skipped" if n % 5 == 4 else "ok") for n in range(10)]
    random.Random(0).shuffle(rows)
    for shard in range(3):
        lines = "".join(json.dumps(row) + "\n" for row in rows[shard::3])
        files.write_text(tmp_path / "probe" / f"{shard}.jsonl", lines)
    loaded = records.load_by_experiment(sorted(tmp_path.glob("probe/*.jsonl"), reverse=True))
    assert list(loaded) == ["probe"]
    assert [cell.factors["n"] for cell in loaded["probe"]] == list(range(10))
