"""The config: what is refused and how, how presets are resolved, and that file, schema and reference agree."""

from __future__ import annotations

import collections
import datetime
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscribe.config import PRESETS, ConfigError, check, load, reading, reference, resolve
from perfscribe.config.schema import paths, properties, schema

ROOT = Path(__file__).parents[1]
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


# What no reading can take for a config: (content, parts of the one line).
UNREADABLE: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "empty": ("", ("empty file", "site: local")),
    "list at the top": ("- site\n- preset\n", ("line 1", '["site", "preset"]', "site: local")),
    "not UTF-8": (b"site: local\npreset: \xff\n", ("line 2", "0xff", "UTF-8")),
    "leading tab": ("experiments:\n\tattention: {}\n", ("line 2", "tab", "spaces")),
    "control character": ("site: local\nseed: \x07\n", ("line 2", "x07", "printable")),
    "open bracket": ("chapters: [cs336,\nseed: 0\n", ("not YAML", "expected key: value")),
    "two colons": ("site: a: b\n", ("line 1", "not YAML")),
    "two documents": ("site: a\n---\nsite: b\n", ("another document",)),
    "too large": ("#" * (reading.MAX_BYTES + 1), ("131072 bytes",)),
    "deep list": ("chapters: " + "[" * 60_000, ("line 1", "16 levels of nesting")),
    "alias of itself": ("chapters: &x [*x]\n", ("line 1", "chapters[0]", "aliases that grow")),
    "alias bomb": (
        "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"{n}: &{n} [{','.join([f'*{m}'] * 9)}]\n" for m, n in zip("abcdefgh", "bcdefghi", strict=True)),
        ("aliases that grow", "20000"),
    ),
    "key twice": ("site: a\nseed: 0\nsite: b\n", ("line 3", "site", '"b"', "line 1", "expected it once")),
    "python object": ("site: !!python/object/apply:os.getcwd []\n", ("line 1", "site", "python/object")),
    "own tag": ("chapters: !mine [cs336]\n", ("line 1", "chapters", "!mine", "without tag")),
    "merge key": ("experiments:\n  attention: {<<: {batch: 1}}\n", ("line 2", "experiments.attention", "<<", "name")),
    "number as key": ("1: local\n", ("line 1", "key 1", "name")),
    "octal": ("seed: 010\n", ("line 1", "seed", "010", "plain decimal number")),
    "hexadecimal": ("seed: 0x10\n", ("line 1", "seed", "0x10", "plain decimal number")),
    "base 60": ("seed: 1:30\n", ("line 1", "seed", "1:30", "plain decimal number")),
    "date": ("site: 2026-11-20\n", ("line 1", "site", "2026-11-20", "quotes")),
    "NaN": ("budget_minutes: .nan\n", ("line 1", "budget_minutes", ".nan", "decimal number")),
    "thousands of digits": (f"seed: {'9' * 5000}\n", ("line 1", "seed", "999", "decimal number")),
    "yes": (
        "experiments:\n  attention:\n    enabled: yes\n",
        ("line 3", "experiments.attention.enabled", "yes", "true, false"),
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
    "key of a section at the top": ({"head_dim": [8]}, ("head_dim", "[8]", f"stands at {A}.head_dim")),
    "site with capitals": ({"site": "Polaris"}, ("site", '"Polaris"', "^[a-z0-9]")),
    "site with a path": ({"site": "../up"}, ("site", '"../up"', "^[a-z0-9]")),
    "site is a number": ({"site": 7}, ("site", "got 7", "text")),
    "preset": ({"preset": "gpuu"}, ("preset", '"gpuu"', "auto, tiny, cpu, gpu", "nearest is gpu")),
    "no chapter": ({"chapters": []}, ("chapters", "[]", "one or more")),
    "unknown chapter": ({"chapters": ["cs336", "cs363"]}, ("chapters[1]", '"cs363"', "nearest is cs336")),
    "negative seed": ({"seed": -1}, ("seed", "-1", "from 0 to 4294967295")),
    "true seed": ({"seed": True}, ("seed", "true", "whole number")),
    "no budget": ({"budget_minutes": 0}, ("budget_minutes", "got 0", "above 0", "or null")),
    "budget in words": ({"budget_minutes": "5m"}, ("budget_minutes", '"5m"', "a number", "or null")),
    "NaN": ({"budget_minutes": float("nan")}, ("budget_minutes", "NaN", "finite number")),
    "huge": ({"seed": 10**5000}, ("seed", "int", "finite number")),
    "identity": ({"on_identity_change": "kep"}, ("on_identity_change", '"kep"', "keep, remeasure", "nearest is keep")),
    "experiments by preset": ({"experiments": {"gpu": {}}}, ("experiments.gpu", "{}", "presets")),
    "unknown experiment": ({"experiments": {"atention": {}}}, ("experiments.atention", "{}", f"nearest is {A}")),
    "unknown key of a section": (
        section("attention", seq_length=[16]),
        (f"{A}.seq_length", "[16]", f"nearest is {A}.seq_len"),
    ),
    "key of another section": (section("attention", terms=5), (f"{A}.terms", "got 5", "mixed_precision")),
    "enabled": (section("attention", enabled="yes"), (f"{A}.enabled", '"yes"', "true or false")),
    "too many shards": (section("attention", shards=65), (f"{A}.shards", "65", "from 1 to 64")),
    "no terms": (
        section("mixed_precision_accumulation", terms=0),
        (f"{M}.terms", "got 0", "from 1"),
    ),
    "one length": (section("attention", seq_len=512), (f"{A}.seq_len", "512", "a list")),
    "length twice": (section("attention", seq_len=[16, 16]), (f"{A}.seq_len", "[16, 16]", "different")),
    "dtype": (
        section("attention", dtype=["float32"]),
        (f"{A}.dtype[0]", '"float32"', "fp32, tf32, bf16, fp16"),
    ),
    "size": (section("end_to_end", size=["2.7b"]), (f"{E}.size[0]", '"2.7b"', "nearest is 2.7B")),
    "unknown preset of a value": (
        section("attention", seq_len={"cpu": [16], "gpuu": [32]}),
        (f"{A}.seq_len.gpuu", "[32]", "tiny, cpu, gpu", "nearest is gpu"),
    ),
    "mapping for a value": (section("attention", batch={"size": 4}), (f"{A}.batch.size", "got 4", "tiny, cpu, gpu")),
    "wrong for one preset": (
        section("attention", seq_len={"tiny": [16], "cpu": [0], "gpu": [16]}),
        (f"{A}.seq_len[0]", "got 0", "from 1", "(preset cpu)"),
    ),
    "preset beside other keys": (
        section("end_to_end", single_length={"gpu": {}, "seq_len": 64}),
        (f"{E}.single_length.gpu", "{}", "presets (tiny, cpu, gpu) alone"),
    ),
    "key of an inner section": (
        section("end_to_end", single_length={"seqlen": 64}),
        (f"{E}.single_length.seqlen", "64", f"nearest is {E}.single_length.seq_len"),
    ),
    "features and heads": (section("io_formats", features=500), (f"{IO}.features", "500", "a multiple of 8")),
    "batch above samples": (
        section("io_formats", samples={"cpu": 16}, training_samples=None, read_samples=8),
        (f"{IO}.batch", "32", f"at most 16, the value of {IO}.samples", "(preset cpu)"),
    ),
    "date": ({"site": datetime.date(2026, 11, 20)}, ("site", "2026-11-20", "date", "expected text")),
    "key is a number": ({"experiments": {1: {}}}, ("experiments", "key 1", "text")),
    "escapes in a value": ({"preset": "\x1b[31m\u2028"}, ("preset", "u001b", "auto, tiny")),
    "long value": ({"preset": "x" * 500}, ("preset", "xxx", "…", "auto, tiny")),
}


@pytest.mark.parametrize("name", UNREADABLE)
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


def test_at_least_45_bad_configs() -> None:
    assert len(UNREADABLE) + len(REFUSED) >= 45


def test_missing_file_folder_and_odd_path(tmp_path: Path) -> None:
    for path, word in ((tmp_path / "none.yaml", "no such file"), (tmp_path, "cannot be read"), (Path("a\0b"), "null")):
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert word in assert_one_line(caught.value)


def test_config_that_holds_itself() -> None:
    raw: dict[str, Any] = {"site": "local"}
    raw["experiments"] = raw
    with pytest.raises(ConfigError) as caught:
        check(raw)
    assert_one_line(caught.value)


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
    assert experiments["end_to_end"]["size"] == ["small", "medium", "large", "xl", "2.7B"]
    assert experiments["io_formats"]["training_samples"] == 512


def test_config_yaml_states_the_defaults() -> None:
    raw = load(CONFIG)
    check(raw)
    for preset in PRESETS:
        assert resolve(raw, preset) == resolve({}, preset)
    assert raw["preset"] == schema()["properties"]["preset"]["default"]


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


GOOD = {
    "byte order mark": "\ufeffsite: local\n",
    "Windows line ends": "site: local\r\nseed: 3\r\n",
    "JSON": '{"site": "local", "seed": 3}',
    "aliases": "experiments: {attention: {seq_len: &s [16, 32]}, end_to_end: {seq_len: *s}}\n",
    "decimals": "budget_minutes: 1.5e+2\n",
    "null": "budget_minutes: ~\n",
    "all samples": "experiments: {io_formats: {training_samples: null}}\n",
}


@pytest.mark.parametrize("name", GOOD)
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


@pytest.mark.parametrize("overrides", [{1: 2}, {"site": object()}, [1]])
def test_bad_overrides(overrides: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, "site: local\n"), overrides)
    assert_one_line(caught.value)


def test_importing_config_is_light() -> None:
    code = "import sys, perfscribe.config; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert not {"yaml", "jsonschema", "numpy", "pandas", "torch", "snakemake"} & set(modules.split())


LEAVES = [path for path in paths(schema()) if path[0] == "experiments" and len(path) > 2]
WORDS = sorted({key for path in paths(schema()) for key in path} | {*PRESETS, "cuda", "fp32"})
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 70) | st.floats() | st.text(max_size=8) | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=8) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)
BRIEF = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


def survives(load_raw: Callable[[], Any]) -> None:
    """Either the config is valid, and then it resolves for every preset, or there is one line."""
    try:
        check(raw := load_raw())
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1 and str(error).isprintable()
        return
    for preset in PRESETS:
        resolve(raw, preset)


@BRIEF
@given(st.sampled_from([(), *LEAVES]), TREES)
def test_fuzz_values(path: tuple[str, ...], value: Any) -> None:
    for key in reversed(path):
        value = {key: value}
    survives(lambda: value)


@BRIEF
@given(st.integers(0, len(CONFIG.read_bytes())), st.integers(0, 3), st.binary(max_size=3))
def test_fuzz_edits_of_config_yaml(place: int, removed: int, added: bytes) -> None:
    content = CONFIG.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), content[:place] + added + content[place + removed :])
        survives(lambda: load(path))
