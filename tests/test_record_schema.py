"""The schema of one record, against records as the package makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from perfscribe.records import records

SCHEMA = yaml.safe_load((Path(__file__).parents[1] / "workflow" / "schemas" / "record.schema.yaml").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def record(**fields: Any) -> dict[str, Any]:
    return records.make(
        {
            "experiment": "attention",
            "key": "0123456789abcdef",
            "round": 1,
            "factors": {"seq_len": 16, "dtype": "fp32", "mean": 0.5, "causal": False, "window": None},
            "status": "ok",
            "samples": {"forward_ms": [1.0, 2]},
            "series": {"steps": [1, "two", None]},
            "fingerprint": "fedcba9876543210",
            "provenance": {"error": {"requested_bytes": 5}},
            **fields,
        }
    )


def test_schema_is_valid_and_closed() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["additionalProperties"] is False
    assert all("description" in node for node in SCHEMA["properties"].values())
    assert set(SCHEMA["required"]) == set(SCHEMA["properties"]) - {"order"}


@pytest.mark.parametrize("status", records.STATUSES)
def test_records_of_every_status_are_valid(status: str) -> None:
    VALIDATOR.validate(record(status=status, reason="" if status == "ok" else "why"))
    VALIDATOR.validate({**record(), "order": 3, "environment": "0123456789ab"})


@pytest.mark.parametrize(
    "fields",
    [
        {"extra": 1},
        {"schema": 2},
        {"key": "0123"},
        {"key": "0123456789ABCDEF"},
        {"round": -1},
        {"factors": {"seq_len": [16]}},
        {"status": "done"},
        {"status": "oom"},
        {"origin": "guessed"},
        {"samples": {"forward_ms": ["1"]}},
        {"samples": {"forward_ms": 1.0}},
        {"values": {"shape": [1]}},
        {"spent": {"wall_s": 1.0}},
        {"spent": {"warmup_s": -1.0, "timed_s": 0, "compile_s": 0, "wall_s": 0}},
        {"environment": "local"},
        {"provenance": "abc"},
        {"flags": "throttled"},
        {"fingerprint": ""},
        {"data_digest": None},
    ],
    ids=str,
)
def test_other_records_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(record(**fields))


@pytest.mark.parametrize("missing", SCHEMA["required"])
def test_every_field_is_required(missing: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate({key: value for key, value in record().items() if key != missing})
