"""`./run import-env env_vars.sh`: the config section that a workshop's env file asks for."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from perfscribe import called_from, config, config_schema, config_yaml, files
from perfscribe.importing import env_file, yaml_edit

# Exported names → keys of a section, the first that it has.
KEYS: dict[str, tuple[str, ...]] = {
    "MODEL_NAME": ("model_name",),
    "MAX_LENGTH": ("max_length",),
    "SEQ_LENGTH": ("max_length",),
    "TRAIN_SIZE": ("train_size",),
    "EVAL_SIZE": ("eval_size",),
    "NUM_EPOCHS": ("num_epochs",),
    "BATCH_SIZE": ("batch_size", "batch"),
    "PER_DEVICE_BATCH_SIZE": ("batch_size", "batch"),
    "GRAD_ACC": ("grad_acc",),
    "GRAD_ACC_STEPS": ("grad_acc",),
    "LEARNING_RATE": ("learning_rate",),
    "LR": ("learning_rate",),
    "WEIGHT_DECAY": ("weight_decay",),
    "FP16": ("fp16", "dtype"),
    "BF16": ("bf16", "dtype"),
    "GRADIENT_CHECKPOINTING": ("gradient_checkpointing",),
    "EVAL_STRATEGY": ("eval_strategy",),
    "SAVE_STRATEGY": ("save_strategy",),
    "LOGGING_STEPS": ("logging_steps",),
    "VOCAB_SIZE": ("vocab_size",),
    "HIDDEN_SIZE": ("hidden_size",),
    "NUM_LAYERS": ("num_layers", "layers"),
    "NUM_HEADS": ("num_heads",),
    "FF_DIM": ("ffn",),
}
# Exported, and never read by the workshop's FSDP and custom scripts: what these read in their place.
NEVER_READ = {
    "BATCH_SIZE": "they read PER_DEVICE_BATCH_SIZE, and without it train with 1",
    "GRAD_ACC": "they read GRAD_ACC_STEPS, and without it their own default",
    "VOCAB_SIZE": "they take the size of the tokenizer's vocabulary",
}
BASELINE = "baseline"  # whose script reads BATCH_SIZE and GRAD_ACC as they are exported
# Not settings of a training: said, and left out. Values of secrets are never shown.
ELSEWHERE = {
    "EXPERIMENT_NAME": "a run's name here follows from its factors",
    "LOG_DIR": "logs lie in logs/",
    "OUTPUT_DIR": "results lie in results/",
    "CONDA_SH_PATH": "./run makes its own environment",
    "CONDA_ENV": "./run makes its own environment",
    "WANDB_API_KEY": "a secret; the tracker takes it from the environment",
    "WORLD_SIZE": "world_size of the experiment says it; torchrun overwrites the variable",
    "MASTER_ADDR": "launchers say it",
    "MASTER_PORT": "launchers say it",
    "CUDA_VISIBLE_DEVICES": "set it where ./run is started",
    "NCCL_ALGO": "experiments.preflight.algorithm, for the self-test alone",
}
CUSTOM = ("HIDDEN_SIZE", "NUM_LAYERS", "NUM_HEADS", "FF_DIM", "VOCAB_SIZE", "SEQ_LENGTH")
PRESETS = config_schema.PRESETS


@dataclass
class Section:
    """What a file asks of an experiment. values: by key; names: the exported one behind each key; notes: for people."""

    experiment: str
    values: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class _Parser(argparse.ArgumentParser):
    """One that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        sys.exit(f"run: import-env: {message} (./run import-env --help)")


def _parser() -> _Parser:
    parser = _Parser(prog="./run import-env", description=__doc__, allow_abbrev=False)
    parser.add_argument("file", type=called_from.file, help="a file of `export NAME=value` lines; it is read, not run")
    parser.add_argument("--experiment", help="whose section; by default the one that the file's names are of")
    parser.add_argument("--preset", choices=PRESETS, help="set the keys for this preset alone; by default for all")
    parser.add_argument("--write", action="store_true", help="into config.yaml; by default to standard output")
    return parser


def sections() -> Mapping[str, Mapping[str, Any]]:
    """The schemas of the experiments that train by the workshop's knobs."""
    known = config_schema.properties(config_schema.properties(config_schema.schema())["experiments"])
    return {name: config_schema.properties(node) for name, node in known.items() if "train_size" in node["properties"]}


def choose(exports: Mapping[str, str], known: Mapping[str, Any]) -> str:
    """The experiment that a file is of, by its names and its EXPERIMENT_NAME; ValueError where none is."""
    title = exports.get("EXPERIMENT_NAME", "").lower()
    custom = "custom" in title or any(name in exports for name in CUSTOM)
    wanted = "weak_scaling" if "weak" in title else ""
    if not wanted and "multi" in title:
        wanted = "custom_multi_gpu" if custom else "multi_gpu"
    for name in (wanted, BASELINE):
        if name in known:
            return name
    raise ValueError(f"no experiment of this project trains by such a file; --experiment {' | '.join(known) or '...'}")


def section_of(read: env_file.EnvFile, experiment: str, node: Mapping[str, Any]) -> Section:
    """The section. ValueError, one line: a value that its key cannot have, or two names that contradict."""
    made = Section(experiment)
    for name, text in read.exports.items():
        keys = [key for key in KEYS.get(name, ()) if key in node]
        if keys:
            _take(made, name, text, keys[0], node[keys[0]])
        elif name in KEYS:
            made.notes.append(f"{name}: experiments.{experiment} has no key for it")
        elif name in ELSEWHERE or name.startswith(("WANDB_", "NCCL_", "TORCH_NCCL_", "SLURM_")):
            made.notes.append(f"{name}: left out; {ELSEWHERE.get(name, 'set it where ./run is started')}")
        else:
            made.notes.append(f"{name}: unknown, left out")
    for number, name, why in read.refused:
        made.notes.append(f"{name}: line {number} was not taken; {why}")
    return made


def _take(made: Section, name: str, text: str, key: str, node: Mapping[str, Any]) -> None:
    value = _dtype(made, name, text) if key == "dtype" else _converted(text, node, name)
    if value is None:
        return
    if key in made.values and made.values[key] != value:
        raise ValueError(f"{name}: got {text}, but {made.names[key]} asks for {key}: {made.values[key]}")
    made.values[key] = value
    made.names[key] = f"{made.names[key]}, {name}" if key in made.names else name


def _dtype(made: Section, name: str, text: str) -> str | None:
    """fp16 or bf16 where the name says so; fp32 where neither does."""
    if _truth(text, name):
        if made.values.get("dtype") in ("fp16", "bf16"):
            raise ValueError(f"{name}: got {text}, but {made.names['dtype']} asks for {made.values['dtype']}")
        made.values.pop("dtype", None)
        return name.lower()
    return None if "dtype" in made.values else "fp32"


def _truth(text: str, name: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in words:
        raise ValueError(f"{name}: got {text!r}, expected True or False")
    return words[text.lower()]


def _converted(text: str, node: Mapping[str, Any], name: str) -> Any:
    """The text as the key's schema wants it; a list of one where it wants a list."""
    kind = node.get("type", "string")
    if kind == "array":
        return [_converted(text, node["items"], name)]
    if kind == "boolean":
        return _truth(text, name)
    try:
        return int(text) if kind == "integer" else float(text) if kind == "number" else text
    except ValueError:
        raise ValueError(f"{name}: got {text!r}, expected {config_schema.expectation(node)}") from None


def check(made: Section, preset: str | None) -> None:
    """ConfigError with one line where the config does not allow the section."""
    config.check({"experiments": {made.experiment: _by_preset(made.values, preset)}})


def _by_preset(values: Mapping[str, Any], preset: str | None) -> dict[str, Any]:
    return {key: {preset: value} if preset else value for key, value in values.items()}


def remarks(made: Section) -> dict[str, str]:
    """What stands behind each key: the name that asks for it, and what the workshop's scripts make of that."""
    found = {}
    for key, names in made.names.items():
        said = []
        for name in names.split(", "):
            unread = NEVER_READ.get(name) if made.experiment != BASELINE or name == "VOCAB_SIZE" else None
            said.append(f"{name}, which the workshop's scripts never read: {unread}" if unread else name)
        found[key] = "; ".join(said)
    return found


def rendered(made: Section, preset: str | None) -> str:
    """The section as YAML, each key with its remark."""
    told = remarks(made)
    values = _by_preset(made.values, preset)
    lines = [f"    {key}: {yaml_edit.scalar(value)}   # {told[key]}" for key, value in values.items()]
    return "\n".join(["experiments:", f"  {made.experiment}:", *lines, ""])


def main(root: Path, arguments: Sequence[str]) -> int:
    """Print the section, or write it; ValueError with one line where the file cannot be used."""
    asked = _parser().parse_args(arguments)
    try:
        made = _read(asked)
        check(made, asked.preset)
        if asked.write:
            _write(root / "config.yaml", made, asked.preset)
    except (ValueError, config.ConfigError) as error:
        raise ValueError(f"import-env: {error}") from None
    if asked.write:
        for key, remark in remarks(made).items():
            print(f"experiments.{made.experiment}.{key}: {yaml_edit.scalar(made.values[key])} ({remark})")
    else:
        print(rendered(made, asked.preset), end="")
    for note in made.notes:
        print(note, file=sys.stderr)
    return 0


def _read(asked: argparse.Namespace) -> Section:
    try:
        text = asked.file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{asked.file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{asked.file}: no text in UTF-8") from None
    read, known = env_file.parse(text), sections()
    if not read.exports and not read.refused:
        raise ValueError(f"{asked.file}: no line of the form export NAME=value")
    experiment = asked.experiment or choose(read.exports, known)
    if experiment not in known:
        raise ValueError(f"--experiment {experiment}: expected one of {', '.join(known)}")
    made = section_of(read, experiment, known[experiment])
    if not made.values:
        raise ValueError(f"{asked.file}: none of its names is a setting of experiments.{experiment}")
    return made


def _beside(standing: Any, value: Any, preset: str | None) -> Any:
    """The value of a key, those of other presets as they stand."""
    if preset is None or standing == value:
        return value
    by_preset = isinstance(standing, dict) and set(standing) <= set(PRESETS)
    others = standing if by_preset else dict.fromkeys(PRESETS, standing) if standing is not None else {}
    return {**others, preset: value}


def _readable(path: Path) -> dict[str, Any]:
    """What the file holds; nothing where it is no config any more."""
    try:
        return config_yaml.read(path)
    except config.ConfigError:
        return {}


def _write(path: Path, made: Section, preset: str | None) -> None:
    """Put the values into config.yaml, all else as it is; ValueError where that would not read back the same."""
    was = config_yaml.read(path)
    before = path.read_text(encoding="utf-8")
    standing = (was.get("experiments") or {}).get(made.experiment) or {}
    wanted = {key: _beside(standing.get(key), value, preset) for key, value in made.values.items()}
    after = yaml_edit.with_values(before, made.experiment, wanted)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / path.name
        written.write_text(after, encoding="utf-8")
        now = _readable(written)
    if now != {**was, "experiments": {**was["experiments"], made.experiment: {**standing, **wanted}}}:
        raise ValueError(f"{path.name} was left as it is: experiments.{made.experiment} is not written a key a line")
    files.write_text(path, after)
