"""The config: what is refused and how, how presets are resolved, and that file, schema and reference agree."""

import collections
import functools
import json
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from perfscribe.config import PRESETS, ConfigError, check, keys, load, reading, reference, resolve
from perfscribe.config.schema import properties, schema

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config.yaml"


def assert_one_line(error: BaseException, *parts: str) -> str:
    """The message, which is one line for a person and holds these parts."""
    text = str(error)
    assert text.isprintable() and "expected" in text
    assert not re.search(r"Traceback|Error\b|Exception|File \"|<class|object at 0x", text)
    assert [part for part in parts if part not in text] == [], text
    return text


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def section(name: str, **keys: Any) -> dict[str, Any]:
    return {"experiments": {name: keys}}


# What no reading can take for a config: (content, parts of the one line).
UNREADABLE: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "empty": ("", ("null", "site: local")),
    "list at the top": ("- site\n- preset\n", ('["site", "preset"]', "site: local")),
    "not UTF-8": (b"site: local\npreset: \xff\n", ("UTF-8", "byte 20")),
    "leading tab": ("experiments:\n\tattention: {}\n", ("line 2", "'\\t'")),
    "too large": ("#" * (reading.MAX_CHARACTERS + 1), ("131072 characters",)),
    "deep mapping": ("{a: " * 15_000, ("expected key: value", "recursion")),
    "alias bomb": (
        "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"{n}: &{n} [{','.join([f'*{m}'] * 9)}]\n" for m, n in zip("abcdefgh", "bcdefghi", strict=True)),
        ("line 2", "an alias"),
    ),
    "inner key twice": (
        "experiments:\n  attention:\n    batch: 4\n    batch: 8\n",
        ("line 4", "the key batch is given twice"),
    ),
    "python object": ("site: !!python/object/apply:os.getcwd []\n", ("line 1", "python/object")),
    "key that is a number": ("experiments:\n  1: {}\n", ("line 2", "the key 1 is no text")),
}

# What the schema or a relation refuses: (config, parts of the one line).
A = "experiments.attention"
E = "experiments.end_to_end"
IO = "experiments.io_formats"
REFUSED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "dotted key": (
        {"experiments.ddp.timeout_s": 20},
        ("experiments.ddp.timeout_s", "'experiments={ddp: {timeout_s: 20}}'"),
    ),
    "unknown key": ({"sead": 1}, ("sead", "got 1", "unknown key", "nearest is seed")),
    "key of a section at the top": ({"head_dim": [8]}, ("head_dim", "[8]", f"stands at {A}.head_dim")),
    "site with a path": ({"site": "../up"}, ("site", '"../up"', "lower-case letters")),
    "preset": ({"preset": "gpuu"}, ("preset", '"gpuu"', "auto, tiny, cpu, gpu", "nearest is gpu")),
    "chapter twice": ({"chapters": ["cs336", "cs336"]}, ("chapters", '["cs336", "cs336"]', "different")),
    "chapter is a word": ({"chapters": "cs336"}, ("chapters", '"cs336"', "a list", "is [cs336]")),
    "true seed": ({"seed": True}, ("seed", "true", "whole number")),
    "constant": (section("single_gpu", d_ff=64), ("experiments.single_gpu.d_ff", "got 64", "an unknown key")),
    "NaN": ({"budget_minutes": float("nan")}, ("budget_minutes", "got NaN", "a number above 0", "or null")),
    "unknown experiment": ({"experiments": {"atention": {}}}, ("experiments.atention", "{}", f"nearest is {A}")),
    "length 0": (section("attention", seq_len=[16, 0]), (f"{A}.seq_len[1]", "got 0", "from 1 to 1048576")),
    "unknown preset of a value": (
        section("attention", seq_len={"cpu": [16], "gpuu": [32]}),
        (f"{A}.seq_len.gpuu", "[32]", "tiny, cpu, gpu", "nearest is gpu"),
    ),
    "wrong for one preset": (
        section("attention", seq_len={"tiny": [16], "cpu": [0], "gpu": [16]}),
        (f"{A}.seq_len[0]", "got 0", "from 1", "(preset cpu)"),
    ),
    "preset beside other keys": (
        section("end_to_end", single_length={"gpu": {}, "seq_len": 64}),
        (f"{E}.single_length.gpu", "{}", "presets (tiny, cpu, gpu) alone"),
    ),
    "features and heads": (section("io_formats", features=500), (f"{IO}.features", "500", "a multiple of 8")),
    "batch above samples": (
        section("io_formats", samples={"cpu": 16}, training_samples=None, read_samples=8),
        (f"{IO}.batch", "32", f"at most 16, the value of {IO}.samples", "(preset cpu)"),
    ),
    "Slurm's list of partitions": (
        {"cluster": {"partition": "short,gpu"}},
        ("cluster.partition", '"short,gpu"', "one name", "lists are not taken"),
    ),
    "digits": ({"seed": 10**5000}, ("config", "digits", "plain values")),
    "escapes in a value": ({"preset": "\x1b[31m\u2028"}, ("preset", "u001b", "auto, tiny")),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_file_gives_one_line(name: str, tmp_path: Path) -> None:
    content, parts = UNREADABLE[name]
    path = written(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert assert_one_line(caught.value, *parts).startswith(str(path))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_config_gives_one_line(name: str) -> None:
    raw, parts = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        check(raw)
    text = assert_one_line(caught.value, *parts)
    assert text.startswith(parts[0] + ":"), text
    if "(preset" not in text:
        with pytest.raises(ConfigError):
            resolve(raw, "cpu")


def test_missing_file_folder_and_odd_path(tmp_path: Path) -> None:
    for path, word in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory"), (Path("a\0b"), "null")):
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert_one_line(caught.value, word)


def test_config_yaml_states_the_defaults() -> None:
    raw = load(CONFIG)
    check(raw)
    for preset in PRESETS:
        config = resolve(raw, preset)
        assert config == resolve({}, preset) and config["preset"] == preset


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, inner in properties(node).items():
        yield from leaves(inner, (*path, key)) if properties(inner) else [((*path, key), inner)]


def nested(path: tuple[str, ...], value: Any) -> Any:
    return functools.reduce(lambda inner, key: {key: inner}, reversed(path), value)


def test_editors_take_config_yaml_and_values_by_preset_and_refuse_others() -> None:
    text = (ROOT / "docs" / "config.schema.json").read_text(encoding="utf-8")
    assert text == reference.json_lines(reference.editor_schema()) + "\n", "python -m perfscribe.config.reference"
    assert CONFIG.read_text().startswith("# yaml-language-server: $schema=docs/config.schema.json\n")
    editor = jsonschema.Draft202012Validator(json.loads(text))
    editor.check_schema(editor.schema)
    editor.validate(load(CONFIG))
    for path, node in leaves(schema()):
        by_preset = [node["x-default"], {"gpu": node["x-default"]["gpu"]}] if path[0] == "experiments" else []
        for value in (node["x-default"]["cpu"], *by_preset):
            editor.validate(nested(path, value))
        assert not editor.is_valid(nested(path, {"gpu": {}})) or path[-1] in ("subjects", "environment")
    editor.validate({"experiments": {"attention": {"gpu": {"seq_len": [48]}}}})
    for raw in (REFUSED[name][0] for name in ("unknown key", "site with a path", "length 0", "wrong for one preset")):
        assert not editor.is_valid(raw)


def test_reference_is_generated_and_has_the_keys_of_every_experiment() -> None:
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert page == reference.reference(), "python -m perfscribe.config.reference"
    for name, section in properties(properties(schema())["experiments"]).items():
        rows = page.partition(f"\n## experiments.{name}\n")[2].partition("\n## ")[0]
        own = [key for key in properties(section) if key not in properties(keys.experiment(""))]
        own += [f"{key}.{inner}" for key in own for inner in properties(properties(section)[key])]
        assert [key for key in own if f"|`{key}`|" not in rows] == [], name


def test_any_key_and_whole_sections_may_be_given_for_one_preset() -> None:
    defaults = {preset: resolve({}, preset) for preset in PRESETS}
    for path in [path for path, _ in leaves(schema()) if path[0] == "experiments"][::6]:
        raw = nested(path, {"gpu": functools.reduce(operator.getitem, path, defaults["gpu"])})
        check(raw)
        assert {preset: resolve(raw, preset) for preset in PRESETS} == defaults, path
    raw = {"experiments": {"attention": {"gpu": {"seq_len": {"gpu": [48]}}}}}
    check(raw)
    assert resolve(raw, "gpu")["experiments"]["attention"]["seq_len"] == [48]
    assert resolve(raw, "cpu") == defaults["cpu"]


def test_constants_are_by_preset_and_follow_the_keys_that_are_set() -> None:
    raw = {"experiments": {"flash_benchmarking": {"seq_len": [1024]}, "multi_gpu": {"world_size": [1, 2]}}}
    section = resolve(raw, "gpu")["experiments"]["flash_benchmarking"]
    grids = [section[name] for name in ("sub_grid", "tf32", "ieee")]
    assert [(grid["seq_len"], grid["head_dim"]) for grid in grids] == [([1024], [64, 128])] * 3
    assert resolve(raw, "gpu")["experiments"]["multi_gpu"]["tuned"]["world_size"] == [1, 2]
    assert resolve({}, "gpu")["experiments"]["flash_benchmarking"]["ieee"]["seq_len"] == [1024, 4096, 16384]


@pytest.mark.parametrize("text", ["\ufeffsite: a\r\nseed: 3\r\n", '{"site": "a"}', "budget_minutes: 1.5e2\n"])
def test_windows_files_json_and_decimals_are_taken(text: str, tmp_path: Path) -> None:
    check(load(written(tmp_path, text)))


@pytest.mark.parametrize("text", ["010", "1:30", "0x10", "yes", ".inf", "2026-11-20", "1_000"])
def test_what_yaml_versions_take_differently_is_text(text: str, tmp_path: Path) -> None:
    assert load(written(tmp_path, f"seed: {text}\n")) == {"seed": text}
    assert load(CONFIG, {"seed": text})["seed"] == text


def test_paths_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    text = "tools: {nsys: ~/nsys}\nworkshop: {tokenizer: a~}\nsubjects: {one: ~/one.py}\n"
    raw = load(written(tmp_path, text), {"subject": "~/mine.py", "cluster": {"environment": {"A": "~/text"}}})
    assert raw == {
        "tools": {"nsys": f"{tmp_path}/nsys"},
        "workshop": {"tokenizer": "a~"},
        "subjects": {"one": f"{tmp_path}/one.py"},
        "subject": f"{tmp_path}/mine.py",
        "cluster": {"environment": {"A": "~/text"}},
    }


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
