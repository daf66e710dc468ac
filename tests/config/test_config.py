"""The config: what is refused and how, how presets are resolved, and that file, schema and reference agree."""

from __future__ import annotations

import collections
import datetime
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscribe.config import PRESETS, ConfigError, check, load, reading, reference, resolve
from perfscribe.config.schema import paths, properties, schema

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config.yaml"


def assert_one_line(error: BaseException) -> str:
    text = str(error)
    assert text and len(text.splitlines()) == 1 and text.isprintable()
    assert not re.search(r"Traceback|Error\b|Exception|File \"|<class|object at 0x", text)
    assert "expected" in text
    return text


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def section(name: str, **keys: Any) -> dict[str, Any]:
    return {"experiments": {name: keys}}


@pytest.fixture(params=["libyaml", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both parsers of PyYAML: wheels have libyaml, a system Python may not."""
    if request.param == "python":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    return str(request.param)


# What no reading can take for a config: (content, parts of the one line).
UNREADABLE: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "empty": ("", ("empty file", "site: local")),
    "only comments": ("# nothing\n\n", ("empty file", "site: local")),
    "list at the top": ("- site\n- preset\n", ("line 1", '["site", "preset"]', "site: local")),
    "word at the top": ("local\n", ("line 1", '"local"', "site: local")),
    "not UTF-8": (b"site: local\npreset: \xff\n", ("line 2", "0xff", "UTF-8")),
    "UTF-16": ("site: local\n".encode("utf-16"), ("line 1", "UTF-8")),
    "leading tab": ("experiments:\n\tattention: {}\n", ("line 2", "tab", "spaces")),
    "control character": ("site: local\nseed: \x07\n", ("line 2", "x07", "printable")),
    "NUL": (b"site: lo\0cal\n", ("line 1", "x00", "printable")),
    "open bracket": ("chapters: [cs336,\nseed: 0\n", ("not YAML", "expected key: value")),
    "open quote": ("site: 'local\n", ("not YAML",)),
    "two colons": ("site: a: b\n", ("line 1", "not YAML")),
    "odd indentation": ("site: local\n   seed: 0\n", ("line 2", "not YAML")),
    "two documents": ("site: a\n---\nsite: b\n", ("another document",)),
    "undefined alias": ("site: *name\n", ("line 1", "undefined alias")),
    "too large": ("#" * (reading.MAX_BYTES + 1), ("131072 bytes",)),
    "deep list": ("chapters: " + "[" * 60_000, ("line 1", "16 levels of nesting")),
    "deep mapping": ("{a: " * 15_000, ("line 1", "16 levels of nesting")),
    "deep block": ("\n".join(" " * i + "a:" for i in range(100)), ("line 17", "16 levels of nesting")),
    "alias of itself": ("chapters: &x [*x]\n", ("line 1", "chapters[0]", "aliases that grow")),
    "alias bomb": (
        "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"{n}: &{n} [{','.join([f'*{m}'] * 9)}]\n" for m, n in zip("abcdefgh", "bcdefghi", strict=True)),
        ("aliases that grow", "20000"),
    ),
    "key twice": ("site: a\nseed: 0\nsite: b\n", ("line 3", "site", '"b"', "line 1", "expected it once")),
    "inner key twice": (
        "experiments:\n  attention:\n    batch: 4\n    batch: 8\n",
        ("line 4", "experiments.attention.batch", "8", "line 3", "expected it once"),
    ),
    "python object": ("site: !!python/object/apply:os.getcwd []\n", ("line 1", "site", "python/object")),
    "python name": ("site: !!python/name:os.system x\n", ("line 1", "site", "expected")),
    "own tag": ("chapters: !mine [cs336]\n", ("line 1", "chapters", "!mine", "without tag")),
    "set": ("chapters: !!set {cs336}\n", ("line 1", "chapters", "set")),
    "binary": ("site: !!binary aGk=\n", ("line 1", "site", "aGk=")),
    "merge key": ("experiments:\n  attention: {<<: {batch: 1}}\n", ("line 2", "experiments.attention", "<<", "name")),
    "number as key": ("1: local\n", ("line 1", "key 1", "name")),
    "truth as key": ("on: local\n", ("line 1", "key on", "name")),
    "list as key": ("? [a]\n: 1\n", ("line 1", "key a sequence", "name")),
    "octal": ("seed: 010\n", ("line 1", "seed", "010", "plain decimal number")),
    "new octal": ("seed: 0o10\n", ("line 1", "seed", "0o10", "plain decimal number")),
    "hexadecimal": ("seed: 0x10\n", ("line 1", "seed", "0x10", "plain decimal number")),
    "binary number": ("seed: 0b1\n", ("line 1", "seed", "0b1", "plain decimal number")),
    "underscore": ("seed: 1_000\n", ("line 1", "seed", "1_000", "plain decimal number")),
    "base 60": ("seed: 1:30\n", ("line 1", "seed", "1:30", "plain decimal number")),
    "exponent without point": ("budget_minutes: 1e3\n", ("line 1", "budget_minutes", "1e3", "plain decimal number")),
    "date": ("site: 2026-11-20\n", ("line 1", "site", "2026-11-20", "quotes")),
    "date and time": ("site: 2026-11-20T10:00:00Z\n", ("line 1", "site", "2026-11-20T10:00:00Z", "quotes")),
    "NaN": ("budget_minutes: .nan\n", ("line 1", "budget_minutes", ".nan", "decimal number")),
    "infinity": ("budget_minutes: .inf\n", ("line 1", "budget_minutes", ".inf", "decimal number")),
    "overflow": ("budget_minutes: 1.0e+999\n", ("line 1", "budget_minutes", "1.0e+999", "decimal number")),
    "thousands of digits": (f"seed: {'9' * 5000}\n", ("line 1", "seed", "999", "decimal number")),
    "yes": (
        "experiments:\n  attention:\n    enabled: yes\n",
        ("line 3", "experiments.attention.enabled", "yes", "true, false"),
    ),
    "in a list": (
        "experiments: {attention: {seq_len: [1, 02]}}",
        ("line 1", "experiments.attention.seq_len[1]", "02", "decimal number"),
    ),
}

# What the schema or a relation refuses: (config, parts of the one line).
A = "experiments.attention"
E = "experiments.end_to_end"
M = "experiments.mixed_precision_accumulation"
IO = "experiments.io_formats"
REFUSED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "no mapping": ([1], ("config", "[1]", "site: local")),
    "unknown key": ({"sead": 1}, ("sead", "got 1", "unknown key", "nearest is seed")),
    "other case": ({"Preset": "cpu"}, ("Preset", '"cpu"', "nearest is preset")),
    "dash": ({"budget-minutes": 5}, ("budget-minutes", "got 5", "nearest is budget_minutes")),
    "key of a section at the top": ({"head_dim": [8]}, ("head_dim", "[8]", f"stands at {A}.head_dim")),
    "nothing like it": ({"zzz": None}, ("zzz", "null", "one of site, preset, chapters")),
    "site with capitals": ({"site": "Polaris"}, ("site", '"Polaris"', "^[a-z0-9]")),
    "site with a path": ({"site": "../up"}, ("site", '"../up"', "^[a-z0-9]")),
    "site with a line break": ({"site": "local\n"}, ("site", r'"local\n"', "^[a-z0-9]")),
    "long site": ({"site": "a" * 41}, ("site", "aaa", "{0,39}")),
    "site is a number": ({"site": 7}, ("site", "got 7", "text")),
    "site is null": ({"site": None}, ("site", "null", "text")),
    "preset": ({"preset": "gpuu"}, ("preset", '"gpuu"', "auto, tiny, cpu, gpu", "nearest is gpu")),
    "preset is a list": ({"preset": ["cpu"]}, ("preset", '["cpu"]', "one of auto")),
    "no chapter": ({"chapters": []}, ("chapters", "[]", "one or more")),
    "unknown chapter": ({"chapters": ["cs336", "cs363"]}, ("chapters[1]", '"cs363"', "nearest is cs336")),
    "chapter twice": ({"chapters": ["cs336", "cs336"]}, ("chapters", '["cs336", "cs336"]', "different")),
    "chapter is a word": ({"chapters": "cs336"}, ("chapters", '"cs336"', "a list")),
    "negative seed": ({"seed": -1}, ("seed", "-1", "from 0 to 4294967295")),
    "large seed": ({"seed": 2**32}, ("seed", "4294967296", "from 0 to 4294967295")),
    "decimal seed": ({"seed": 1.0}, ("seed", "1.0", "whole number")),
    "true seed": ({"seed": True}, ("seed", "true", "whole number")),
    "seed by preset": ({"seed": {"cpu": 1}}, ("seed", '{"cpu": 1}', "whole number")),
    "no budget": ({"budget_minutes": 0}, ("budget_minutes", "got 0", "above 0", "or null")),
    "negative budget": ({"budget_minutes": -5}, ("budget_minutes", "-5", "above 0")),
    "budget in words": ({"budget_minutes": "5m"}, ("budget_minutes", '"5m"', "a number", "or null")),
    "NaN": ({"budget_minutes": float("nan")}, ("budget_minutes", "NaN", "finite number")),
    "infinity": ({"budget_minutes": float("inf")}, ("budget_minutes", "Infinity", "finite number")),
    "huge": ({"seed": 10**5000}, ("seed", "int", "finite number")),
    "identity": ({"on_identity_change": "kep"}, ("on_identity_change", '"kep"', "keep, remeasure", "nearest is keep")),
    "identity in words": ({"on_identity_change": True}, ("on_identity_change", "true", "keep, remeasure")),
    "no experiments": ({"experiments": None}, ("experiments", "null", "all_reduce, attention")),
    "experiments by preset": ({"experiments": {"gpu": {}}}, ("experiments.gpu", "{}", "presets")),
    "unknown experiment": ({"experiments": {"atention": {}}}, ("experiments.atention", "{}", f"nearest is {A}")),
    "experiment is a word": ({"experiments": {"attention": "on"}}, (A, '"on"', "a section with keys among enabled")),
    "unknown key of a section": (
        section("attention", seq_length=[16]),
        (f"{A}.seq_length", "[16]", f"nearest is {A}.seq_len"),
    ),
    "key of another section": (section("attention", terms=5), (f"{A}.terms", "got 5", "mixed_precision")),
    "enabled": (section("attention", enabled="yes"), (f"{A}.enabled", '"yes"', "true or false")),
    "no rounds": (section("attention", rounds=0), (f"{A}.rounds", "got 0", "from 1 to 100")),
    "too many shards": (section("attention", shards=65), (f"{A}.shards", "65", "from 1 to 64")),
    "isolation": (
        section("attention", isolation="jobs"),
        (f"{A}.isolation", '"jobs"', "job, cell", "nearest is job"),
    ),
    "timeout": (section("attention", timeout_s="10"), (f"{A}.timeout_s", '"10"', "a number above 0")),
    "no terms": (
        section("mixed_precision_accumulation", terms=0),
        (f"{M}.terms", "got 0", "from 1"),
    ),
    "addend": (
        section("mixed_precision_accumulation", addend=1e6),
        (f"{M}.addend", "1000000.0", "65504"),
    ),
    "no length": (section("attention", seq_len=[]), (f"{A}.seq_len", "[]", "one or more")),
    "one length": (section("attention", seq_len=512), (f"{A}.seq_len", "512", "a list")),
    "length twice": (section("attention", seq_len=[16, 16]), (f"{A}.seq_len", "[16, 16]", "different")),
    "length 0": (section("attention", seq_len=[16, 0]), (f"{A}.seq_len[1]", "got 0", "from 1 to 1048576")),
    "long length": (section("attention", seq_len=[2**21]), (f"{A}.seq_len[0]", "2097152", "1048576")),
    "length in words": (section("attention", seq_len=["512"]), (f"{A}.seq_len[0]", '"512"', "whole number")),
    "wide head": (section("attention", head_dim=[2048]), (f"{A}.head_dim[0]", "2048", "from 1 to 1024")),
    "dtype": (
        section("attention", dtype=["float32"]),
        (f"{A}.dtype[0]", '"float32"', "fp32, tf32, bf16, fp16"),
    ),
    "autocast dtype": (
        section("autocast_dtypes", dtype=["bf-16"]),
        ("experiments.autocast_dtypes.dtype[0]", '"bf-16"', "fp16, bf16", "nearest is bf16"),
    ),
    "device": (section("attention", device=["cuda:0"]), (f"{A}.device[0]", '"cuda:0"', "nearest is cuda")),
    "implementation": (section("attention", implementation=["flash"]), (f"{A}.implementation[0]", '"flash"', "eager")),
    "size": (section("end_to_end", size=["2.7b"]), (f"{E}.size[0]", '"2.7b"', "nearest is 2.7B")),
    "size is a number": (section("end_to_end", size=[2.7]), (f"{E}.size[0]", "2.7", "one of nano")),
    "unknown preset of a value": (
        section("attention", seq_len={"cpu": [16], "gpuu": [32]}),
        (f"{A}.seq_len.gpuu", "[32]", "tiny, cpu, gpu", "nearest is gpu"),
    ),
    "mapping for a value": (section("attention", batch={"size": 4}), (f"{A}.batch.size", "got 4", "tiny, cpu, gpu")),
    "empty mapping for a value": (section("attention", batch={}), (f"{A}.batch", "{}", "whole number")),
    "preset within a preset": (
        section("attention", seq_len={"gpu": {"gpu": [16]}}),
        (f"{A}.seq_len", '{"gpu": [16]}', "a list", "(preset gpu)"),
    ),
    "wrong for one preset": (
        section("attention", seq_len={"tiny": [16], "cpu": [0], "gpu": [16]}),
        (f"{A}.seq_len[0]", "got 0", "from 1", "(preset cpu)"),
    ),
    "wrong for two presets": (
        section("attention", batch={"cpu": "four", "gpu": "four"}),
        (f"{A}.batch", '"four"', "whole number", "(preset cpu and gpu)"),
    ),
    "null by preset": (section("attention", batch={"gpu": None}), (f"{A}.batch", "null", "(preset gpu)")),
    "preset beside other keys": (
        section("end_to_end", single_length={"gpu": {}, "seq_len": 64}),
        (f"{E}.single_length.gpu", "{}", "presets (tiny, cpu, gpu) alone"),
    ),
    "key of an inner section": (
        section("end_to_end", single_length={"seqlen": 64}),
        (f"{E}.single_length.seqlen", "64", f"nearest is {E}.single_length.seq_len"),
    ),
    "inner list": (section("end_to_end", single_length={"seq_len": [64]}), (f"{E}.single_length.seq_len", "[64]")),
    "negative warm-up": (
        section("warmup", warmup_steps=[-1]),
        ("experiments.warmup.warmup_steps[0]", "-1", "from 0"),
    ),
    "features and heads": (section("io_formats", features=500), (f"{IO}.features", "500", "a multiple of 8")),
    "format": (section("io_formats", format=["hdf5-gzip"]), (f"{IO}.format[0]", "nearest is hdf5_gzip")),
    "batch above samples": (
        section("io_formats", samples={"cpu": 16}, training_samples=None, read_samples=8),
        (f"{IO}.batch", "32", f"at most 16, the value of {IO}.samples", "(preset cpu)"),
    ),
    "training above samples": (
        section("io_formats", training_samples={"tiny": 65}),
        (f"{IO}.training_samples", "65", "at most 64", f"{IO}.samples", "(preset tiny)"),
    ),
    "batch above training": (
        section("io_formats", training_samples={"gpu": 31}),
        (f"{IO}.batch", "32", "at most 31", f"{IO}.training_samples", "(preset gpu)"),
    ),
    "reads above samples": (
        section("io_formats", read_samples={"tiny": 65}),
        (f"{IO}.read_samples", "65", "at most 64", "(preset tiny)"),
    ),
    "date": ({"site": datetime.date(2026, 11, 20)}, ("site", "2026-11-20", "date", "expected text")),
    "tuple": ({"chapters": ("cs336",)}, ("chapters", "cs336", "tuple")),
    "path": ({"site": Path("local")}, ("site", "local", "expected text")),
    "key is a number": ({"experiments": {1: {}}}, ("experiments", "key 1", "text")),
    "key is null": ({None: 1}, ("config", "key null", "text")),
    "line break in a key": ({"se\ned": 1}, (r"se\ned", "got 1", "seed")),
    "escapes in a value": ({"preset": "\x1b[31m\u2028"}, ("preset", "u001b", "auto, tiny")),
    "long value": ({"preset": "x" * 500}, ("preset", "xxx", "…", "auto, tiny")),
}


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.usefixtures("parser")
def test_unreadable_file_gives_one_line(name: str, tmp_path: Path) -> None:
    content, parts = UNREADABLE[name]
    path = written(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    text = assert_one_line(caught.value)
    assert text.startswith(str(path))
    assert [part for part in parts if part not in text.removeprefix(str(path))] == [], text


@pytest.mark.parametrize("name", REFUSED)
def test_refused_config_gives_one_line(name: str) -> None:
    raw, parts = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        check(raw)
    text = assert_one_line(caught.value)
    assert text.startswith(parts[0] + ":"), text
    assert [part for part in parts if part not in text] == [], text


@pytest.mark.parametrize("name", [n for n, (raw, _) in REFUSED.items() if "(preset" not in "".join(REFUSED[n][1])])
def test_resolve_refuses_what_check_refuses(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(REFUSED[name][0], "cpu")
    assert assert_one_line(caught.value).startswith(REFUSED[name][1][0] + ":")


def test_at_least_45_bad_configs() -> None:
    assert len(UNREADABLE) + len(REFUSED) >= 45


def test_missing_file_folder_and_odd_path(tmp_path: Path) -> None:
    for path, word in ((tmp_path / "none.yaml", "no such file"), (tmp_path, "cannot be read"), (Path("a\0b"), "null")):
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert word in assert_one_line(caught.value)


def test_endless_file_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigError, match="bytes"):
        load(Path("/dev/zero"))


def test_config_that_holds_itself() -> None:
    raw: dict[str, Any] = {"site": "local"}
    raw["experiments"] = raw
    wide: list[Any] = []
    for _ in range(10):
        wide = [wide] * 10
    for config in (raw, {"chapters": wide}):
        with pytest.raises(ConfigError) as caught:
            check(config)
        assert_one_line(caught.value)


def test_check_looks_at_all_presets_whichever_is_active() -> None:
    with pytest.raises(ConfigError, match=r"\(preset gpu\)"):
        check({"preset": "tiny", **section("attention", batch={"gpu": 0})})


def test_resolve_knows_three_presets() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({}, "auto")
    assert '"auto"' in assert_one_line(caught.value)


@pytest.mark.parametrize("preset", PRESETS)
def test_resolved_config_is_valid_json_schema(preset: str) -> None:
    config = resolve(load(CONFIG), preset)
    jsonschema.Draft202012Validator(schema()).validate(config)
    assert config["preset"] == preset
    assert {tuple(path) for path in paths(schema())} == set(key_paths(config))


def key_paths(config: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        yield (*above, key)
        if isinstance(value, dict) and not set(value) <= set(PRESETS):
            yield from key_paths(value, (*above, key))


def test_homework_grid_of_the_gpu_preset() -> None:
    experiments = resolve(load(CONFIG), "gpu")["experiments"]
    assert experiments["attention"]["head_dim"] == [16, 32, 64, 128]
    assert experiments["attention"]["seq_len"] == [256, 1024, 4096, 8192, 16384]
    assert (experiments["attention"]["batch"], experiments["attention"]["passes"]) == (8, 100)
    assert experiments["end_to_end"]["size"] == ["small", "medium", "large", "xl", "2.7B"]
    assert experiments["end_to_end"]["single_length"]["dtype"] == ["tf32", "bf16", "fp16"]
    assert experiments["io_formats"]["training_samples"] == 512


def test_config_yaml_states_the_defaults() -> None:
    raw = load(CONFIG)
    check(raw)
    for preset in PRESETS:
        assert resolve(raw, preset) == resolve({}, preset)
    assert raw["preset"] == schema()["properties"]["preset"]["default"]


def test_config_yaml_reads_the_same_in_plain_yaml() -> None:
    assert load(CONFIG) == yaml.safe_load(CONFIG.read_text(encoding="utf-8"))


def test_reference_is_generated() -> None:
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert page == reference.reference(), "python -m perfscribe.config.reference > docs/config.md"


def schema_nodes(node: Any) -> Iterator[dict[str, Any]]:
    yield node
    for inner in properties(node).values():
        yield from schema_nodes(inner)


def test_schema_is_closed_and_explained() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    for node in schema_nodes(schema()):
        assert node["description"]
        assert "properties" not in node or node["additionalProperties"] is False
        assert not set(properties(node)) & set(PRESETS)


def test_schema_defaults_are_allowed() -> None:
    for node in list(schema_nodes(schema()))[1:]:
        levels = [node["default"]]
        if by_preset := node.get("x-default-by-preset"):
            assert set(by_preset) == set(PRESETS) and by_preset["cpu"] == node["default"]
            levels += by_preset.values()
        for level in levels:
            jsonschema.Draft202012Validator(node).validate(level)


LEAVES = [path for path in paths(schema()) if path[0] == "experiments" and len(path) > 2]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LEAVES))
def test_any_key_may_be_given_for_one_preset_alone(path: tuple[str, ...]) -> None:
    value: Any = resolve({}, "gpu")
    for key in path:
        value = value[key]
    raw: Any = {"gpu": value}
    for key in reversed(path):
        raw = {key: raw}
    check(raw)
    for preset in PRESETS:
        assert resolve(raw, preset) == resolve({}, preset)


def test_plain_values_hold_for_every_preset() -> None:
    raw = section("attention", seq_len=[48], batch={"tiny": 1, "gpu": 2})
    check(raw)
    resolved = {preset: resolve(raw, preset)["experiments"]["attention"] for preset in PRESETS}
    assert [resolved[preset]["seq_len"] for preset in PRESETS] == [[48], [48], [48]]
    assert [resolved[preset]["batch"] for preset in PRESETS] == [1, 8, 2]


def test_whole_sections_may_be_given_by_preset() -> None:
    raw = {"experiments": {"attention": {"gpu": {"seq_len": {"gpu": [48]}}}, "io_formats": {"tiny": {"batch": 2}}}}
    check(raw)
    assert resolve(raw, "gpu")["experiments"]["attention"]["seq_len"] == [48]
    assert resolve(raw, "cpu") == resolve({}, "cpu")
    assert resolve(raw, "tiny")["experiments"]["io_formats"]["batch"] == 2


def test_resolve_gives_a_copy() -> None:
    raw = section("attention", seq_len=[16])
    for _ in range(2):
        config = resolve(raw, "tiny")
        assert config["experiments"]["attention"]["head_dim"] == [8, 16]
        config["experiments"]["attention"]["seq_len"].append(32)
        config["experiments"]["attention"]["head_dim"].append(32)
    assert raw == section("attention", seq_len=[16])


def test_ordered_mappings_become_plain_ones() -> None:
    raw = collections.OrderedDict(experiments=collections.OrderedDict(attention=collections.OrderedDict(batch=2)))
    check(raw)
    assert type(resolve(raw, "cpu")["experiments"]["attention"]) is dict


def test_order_of_keys_does_not_depend_on_the_file() -> None:
    one, other = resolve({"seed": 1, "site": "a"}, "cpu"), resolve({"site": "a", "seed": 1}, "cpu")
    assert str(one) == str(other)


GOOD = {
    "one key": "site: h200-node_2\n",
    "byte order mark": "\ufeffsite: local\n",
    "Windows line ends": "site: local\r\nseed: 3\r\n",
    "quoted number-like site": "site: '010'\n",
    "JSON": '{"site": "local", "seed": 3}',
    "aliases": "experiments: {attention: {seq_len: &s [16, 32]}, end_to_end: {seq_len: *s}}\n",
    "decimals": "budget_minutes: 1.5e+2\n",
    "whole number for a number": "experiments: {attention: {timeout_s: 5}}\n",
    "null": "budget_minutes: ~\n",
    "empty sections": "experiments: {attention: {}}\n",
    "empty extras": "experiments: {end_to_end: {single_length: {dtype: []}}}\n",
    "all samples": "experiments: {io_formats: {training_samples: null}}\n",
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.usefixtures("parser")
def test_good_configs(name: str, tmp_path: Path) -> None:
    raw = load(written(tmp_path, GOOD[name]))
    check(raw)
    for preset in PRESETS:
        resolve(raw, preset)


def test_overrides_are_laid_on_top_key_by_key(tmp_path: Path) -> None:
    path = written(tmp_path, "site: local\nseed: 3\nexperiments: {attention: {batch: 2, seq_len: {gpu: [64]}}}\n")
    # As Snakemake hands them over: scalars of the command line typed, nested ones as text.
    overrides = collections.OrderedDict(
        seed=5, experiments={"attention": {"seq_len": {"cpu": ["16", "32"]}, "enabled": "false", "dtype": ["tf32"]}}
    )
    raw = load(path, overrides)
    check(raw)
    assert (raw["site"], raw["seed"]) == ("local", 5)
    attention = {"batch": 2, "seq_len": {"gpu": [64], "cpu": [16, 32]}, "enabled": False, "dtype": ["tf32"]}
    assert raw["experiments"]["attention"] == attention
    assert load(path, {"experiments": {"attention": {"seq_len": [8]}}})["experiments"]["attention"]["seq_len"] == [8]
    assert load(path, {"budget_minutes": None})["budget_minutes"] is None


@pytest.mark.parametrize("overrides", [{1: 2}, {"site": object()}, [1], {"site": float("nan")}])
def test_bad_overrides(overrides: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, "site: local\n"), overrides)
    assert_one_line(caught.value)


def test_doubtful_text_in_overrides_is_left_to_the_check(tmp_path: Path) -> None:
    raw = load(written(tmp_path, "site: local\n"), {"seed": "010"})
    with pytest.raises(ConfigError, match='seed: got "010", expected a whole number'):
        check(raw)


def test_importing_config_is_light() -> None:
    code = "import sys, perfscribe.config; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert not {"yaml", "jsonschema", "numpy", "pandas", "torch", "snakemake"} & set(modules.split())


WORDS = sorted({key for path in paths(schema()) for key in path} | {*PRESETS, "cuda", "fp32"})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(WORDS),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(WORDS), st.text(max_size=8), st.integers()), inner, max_size=4),
    ),
    max_leaves=12,
)
BRIEF = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def survives(raw: Any) -> None:
    """Either the config is valid, and then it resolves for every preset, or there is one line."""
    try:
        check(raw)
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1 and str(error).isprintable()
        return
    for preset in PRESETS:
        resolve(raw, preset)


@BRIEF
@given(TREES)
def test_fuzz_trees(raw: Any) -> None:
    survives(raw)


@BRIEF
@given(st.sampled_from(LEAVES), TREES)
def test_fuzz_one_value(path: tuple[str, ...], value: Any) -> None:
    for key in reversed(path):
        value = {key: value}
    survives(value)


def survives_as_file(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            raw = load(written(Path(folder), content))
        except ConfigError as error:
            assert len(str(error).splitlines()) == 1 and str(error).isprintable()
            return
    survives(raw)


@BRIEF
@given(st.one_of(st.binary(max_size=200), st.text("ab:-[]{}?!&*#'\"|>%@`,~<= \n\t01.e_xéß\u2028", max_size=200)))
def test_fuzz_files(content: bytes | str) -> None:
    survives_as_file(content if isinstance(content, bytes) else content.encode())


@BRIEF
@given(st.integers(0, len(CONFIG.read_bytes())), st.integers(0, 3), st.binary(max_size=3))
def test_fuzz_edits_of_config_yaml(place: int, removed: int, added: bytes) -> None:
    content = CONFIG.read_bytes()
    survives_as_file(content[:place] + added + content[place + removed :])
