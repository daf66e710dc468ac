"""Records: made whole, merged over rounds, loaded in plan order; what the worker writes is valid by the schema."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from workspace import ROOT, Workspace

from perfscribe.base import files
from perfscribe.records import records

SCHEMA = yaml.safe_load((ROOT / "workflow" / "schemas" / "record.schema.yaml").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

# A cell for every way to end that costs no time.
MEASURE = '''"""Cells that end in every way."""
from perfscribe.base.cells import Cell, Measurement, Unsupported

ENDS = ("ok", "text", "oom", "raises", "unsupported")


def cells(config):
    lacking = [Cell({"end": "cuda", "n": 0}, requires=("cuda",)), Cell({"end": "left_out", "n": 0}, skip="by hand")]
    return [Cell({"end": end, "n": n}) for end in ENDS for n in (1, 2)] + lacking


def run(cell):
    if cell["end"] == "oom":
        raise MemoryError("no room")
    if cell["end"] == "raises":
        raise RuntimeError("first line\\nsecond line")
    if cell["end"] == "unsupported":
        raise Unsupported("needs another machine")
    if cell["end"] == "text":
        return Measurement(values={"word": "a | b", "none": None, "yes": True})
    return Measurement(
        samples={"time_ms": [1, 2.5]}, warmup={"time_ms": [9]}, timers={"time_ms": "host clock"}, warmup_s=0.1
    )
'''
PRESENT = '''"""Its table."""
from perfscribe.show import tables as t

TABLES = ("cs336.ends",)


def tables(records):
    return [t.make(TABLES[0], "Ends", records["ends"], [t.factor("end", "End"), t.derived("n", "n", lambda r: 1)])]

'''


def row(n: int = 1, status: str = "ok", number: int = 1, **fields: Any) -> dict[str, Any]:
    """A record of the cell n in one round, as a records file holds it."""
    fields.setdefault("order", n)
    samples = {"time_ms": [float(number), number + 0.5]} if status == "ok" else {}
    return records.make(
        {
            "experiment": "probe",
            "key": f"{n:016x}",
            "round": number,
            "factors": {"n": n},
            "status": status,
            "reason": "" if status == "ok" else f"why {number}",
            "samples": samples,
            "warmup": {name: [9.0 * number] for name in samples},
            "fingerprint": f"{number:016x}",
            "environment": "" if status in ("skipped", "not_run") else "0123456789ab",
            **fields,
        }
    )


# --- make -------------------------------------------------------------------------------------------------------


def test_a_record_is_complete_and_named_by_its_content() -> None:
    made = row()
    VALIDATOR.validate(made)
    assert made["id"] == row()["id"] != row(2)["id"]
    other = records.make({**made, "provenance": {"node": "other"}})
    assert other["id"] != made["id"]
    assert records.make({**made, "id": ""})["id"] == made["id"]


# --- rounds -----------------------------------------------------------------------------------------------------


def test_samples_are_kept_by_round() -> None:
    [merged] = records.merge_rounds([row(number=1), row(number=2), row(number=3)])
    assert merged.samples == {"time_ms": [[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]]}
    assert merged.warmup == {"time_ms": [[9.0], [18.0], [27.0]]}
    assert merged.ok and merged.reason == "" and merged.fingerprint == f"{1:016x}"


@pytest.mark.parametrize("statuses", list(itertools.combinations(records.STATUSES, 2)))
def test_the_worst_status_of_a_cell_wins(statuses: tuple[str, str]) -> None:
    rounds = [row(status=status, number=number) for number, status in enumerate(statuses, start=1)]
    shown = 0 if statuses[1] == "not_run" else 1  # rounds still to come hide none that was measured
    for order in (rounds, reversed(rounds)):
        [merged] = records.merge_rounds(order)
        assert (merged.status, merged.reason) == (statuses[shown], rounds[shown]["reason"])
        assert merged.samples == ({"time_ms": [[1.0, 1.5]]} if statuses[0] == "ok" else {})
        assert merged.flags == ([] if shown else ["1 of 2 rounds"])


def test_figures_of_a_failed_cell_are_those_before_its_failure() -> None:
    partly = row(status="oom", number=1, samples={"time_ms": [3.0]}, values={"size": 7})
    later = row(status="oom", number=2)
    [merged] = records.merge_rounds([partly, later])
    assert (merged.status, merged.samples, merged.values) == ("oom", {"time_ms": [[3.0]]}, {"size": 7})
    [beside] = records.merge_rounds([row(number=1), partly | {"round": 2}])
    assert (beside.status, beside.samples) == ("oom", {"time_ms": [[1.0, 1.5]]}), "a round that is ok goes first"


def test_what_rounds_have_apart_is_put_together() -> None:
    spent = {"warmup_s": 1.0, "timed_s": 2.0, "compile_s": 0.0, "wall_s": 4.0}
    error = {"requested_bytes": 5}
    rounds = [
        row(number=1, environment="b" * 12, flags=["busy", "hot"], spent=spent),
        row(number=2, environment="a" * 12, flags=["busy"], spent=spent),
        row(number=3, status="oom", environment="a" * 12, spent=spent, provenance={"error": error}),
    ]
    [merged] = records.merge_rounds(rounds)
    assert merged.environments == ["a" * 12, "b" * 12]
    assert merged.flags == ["busy", "hot"]
    assert merged.spent == {"warmup_s": 3.0, "timed_s": 6.0, "compile_s": 0.0, "wall_s": 12.0}
    assert (merged.status, merged.error) == ("oom", error)


def test_flags_of_what_was_watched_are_of_today_s_rules() -> None:
    watched = {"samples": 1, "throttled_fraction": 1.0, "throttle_reasons": {}}
    [merged] = records.merge_rounds([row(watch=watched, flags=["throttled 100 % of the time", "kept"])])
    assert merged.flags == ["kept", "throttled in 1 of 1 readings"]


def test_equal_factors_are_one_cell_whatever_their_order() -> None:
    rounds = [row(factors={"a": 1, "b": 2}), row(factors={"b": 2, "a": 1}, number=2), row(factors={"a": 1, "b": 3})]
    assert [len(cell.samples["time_ms"]) for cell in records.merge_rounds(rounds)] == [2, 1]


def test_has_compares_levels() -> None:
    [cell] = records.merge_rounds([row(factors={"seq_len": 64, "dtype": "fp32"})])
    assert cell.has() and cell.has(seq_len=64) and cell.has(seq_len=64, dtype="fp32")
    assert not cell.has(seq_len=65) and not cell.has(head_dim=64)


# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
def test_cells_of_all_shards_stand_in_the_order_of_the_plan(tmp_path: Path, shards: int) -> None:
    rows = [row(n, "skipped" if n % 5 == 4 else "ok") for n in range(10)]
    random.Random(0).shuffle(rows)
    for shard in range(shards):
        files.write_json_lines(tmp_path / "probe" / f"{shard}.jsonl", rows[shard::shards])
    loaded = records.load_by_experiment(sorted(tmp_path.glob("probe/*.jsonl"), reverse=True))
    assert list(loaded) == ["probe"]
    assert [cell.factors["n"] for cell in loaded["probe"]] == list(range(10))


def test_the_gpu_of_a_cell_is_that_of_its_environment(tmp_path: Path) -> None:
    known = tmp_path / "environments"
    for name, model in (("a1", "NVIDIA H200"), ("b2", "NVIDIA H200"), ("c3", "NVIDIA A100"), ("d4", None)):
        files.write_json(known / f"{name}.json", {"gpu_model": model})
    measured_in = [["a1"], ["b2", "a1"], ["c3", "a1"], ["d4"], ["e5"], []]
    rows = [
        row(n, number=number, environment=one)
        for n, environments in enumerate(measured_in)
        for number, one in enumerate(environments or [""], 1)
    ]
    files.write_json_lines(tmp_path / "probe" / "0.jsonl", rows)
    paths = [tmp_path / "probe" / "0.jsonl"]
    cells = {cell.factors["n"]: cell.gpu for cell in records.load_by_experiment(paths, known)["probe"]}
    assert cells == {0: "NVIDIA H200", 1: "NVIDIA H200", 2: "", 3: "", 4: "", 5: ""}
    assert {cell.gpu for cell in records.load_by_experiment(paths)["probe"]} == {""}


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "probe" / "0.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps(row()) + '\n{"torn')
    with pytest.raises(ValueError, match=r"^.*0\.jsonl: cannot be read as JSON lines"):
        records.load([path])


# --- the schema -------------------------------------------------------------------------------------------------


def test_schema_is_valid_and_closed() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["additionalProperties"] is False
    assert all("description" in node for node in SCHEMA["properties"].values())
    assert set(SCHEMA["required"]) == set(SCHEMA["properties"]) - {"order"}


@pytest.mark.parametrize("status", records.STATUSES)
def test_records_of_every_status_are_valid(status: str) -> None:
    VALIDATOR.validate(row(status=status, series={"steps": [1, "two", None]}, factors={"a": 0.5, "b": None}))


@pytest.mark.parametrize(
    "fields",
    [
        {"extra": 1},
        {"key": "0123"},
        {"round": -1},
        {"factors": {"seq_len": [16]}},
        {"status": "done", "reason": "why"},
        {"status": "oom", "reason": ""},
        {"samples": {"forward_ms": ["1"]}},
        {"values": {"shape": [1]}},
        {"spent": {"warmup_s": -1.0, "timed_s": 0, "compile_s": 0, "wall_s": 0}},
        {"environment": "local"},
        {"flags": "throttled"},
        {"fingerprint": ""},
    ],
    ids=str,
)
def test_other_records_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(row(**fields))


# --- what the worker writes -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A site with a cell for every end."""
    space = Workspace(tmp_path_factory.mktemp("records"))
    space.only()
    space.add_experiment("ends", MEASURE, PRESENT)
    done = space.run("report")
    assert done.returncode == 0, done.stdout
    return space


def test_the_worker_writes_valid_records(ends: Workspace) -> None:
    written = ends.rows("ends")
    for one in written:
        VALIDATOR.validate(one)
    measured_on_gpu = any(one["factors"]["end"] == "cuda" and one["status"] == "ok" for one in written)
    cuda = "ok" if measured_on_gpu else "unsupported"
    expected = Counter({"ok": 4, "oom": 2, "failed": 2, "unsupported": 2, "skipped": 1}) + Counter([cuda])
    assert Counter(one["status"] for one in written) == expected
    assert [one["order"] for one in written] == list(range(12))
