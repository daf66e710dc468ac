"""Tokenised SQuAD as a data set: its parameters, name and files, and how to read it.

Written by perfscribe.data.squad_tokenised. One data set contains all ways to label (prompts.LABELS), so that all
trainings on the same rows share it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

KIND = "squad"
ARRAYS, FACTS, TOKENIZER = "tokens.npz", "facts.json", "tokenizer.json"
FILES = (ARRAYS, FACTS, TOKENIZER)
ROOT = Path(__file__).resolve().parents[2]
SIZES = ("train_size", "eval_size", "max_length", "new_tokens", "vocab_size", "seed")
HUB = "hub"


@dataclass(frozen=True)
class TokenisedSet:
    """A data set with one kind of labels. Arrays are int64, by the names that transformers' Trainer gives them.

    training, evaluation: input_ids, attention_mask and labels, each (rows, max_length). prompts: input_ids and
    attention_mask of the evaluation questions, (rows, length), padded on the left. references: question id →
    reference answers, in the order of prompts. facts: content of facts.json. tokenizer: text of tokenizer.json.
    """

    training: Mapping[str, np.ndarray]
    evaluation: Mapping[str, np.ndarray]
    prompts: Mapping[str, np.ndarray]
    references: Mapping[str, list[str]]
    facts: Mapping[str, Any]
    tokenizer: str


def from_checkout(path: str) -> Path:
    """Resolve a path of the config, relative to the checkout."""
    return ROOT / path


def _file_digests(path: Path) -> dict[str, str]:
    from perfscribe.data.squad import files_in

    if not path.exists():
        raise ValueError(f"workshop.squad: {path}: no such file or folder")
    files = files_in(path) if path.is_dir() else (path,)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _tokenizer(config: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the tokenizer's source: {"path", "sha256"} of a folder, {"hub": model name}, or None (train one).

    workshop.tokenizer goes before workshop.weights; weights without a tokenizer.json give None. Raises ValueError (one
    line) if the folder workshop.tokenizer has no tokenizer.json.
    """
    named, weights = config["workshop"]["tokenizer"], config["workshop"]["weights"]
    if named is None and weights == HUB:
        return {HUB: str(config.get("model_name", "bigscience/bloom-560m"))}
    if named is None and weights is not None and (from_checkout(weights) / TOKENIZER).is_file():
        named = weights
    if named is None:
        return None
    from perfscribe.data.tokenizer import sha256_of

    return {"path": named, "sha256": sha256_of(from_checkout(named))}


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the data set is made from: SIZES, squad (None: generated) and tokenizer (None: trained on the rows).

    squad and tokenizer come with SHA-256, except a tokenizer from the hub. config: an experiment's section, with the
    run's `seed` and `workshop` added. Raises ValueError (one line) for a bad workshop.squad or workshop.tokenizer.
    """
    squad = config["workshop"]["squad"]
    source = None if squad is None else {"path": squad, "sha256": _file_digests(from_checkout(squad))}
    return {name: config[name] for name in SIZES} | {"squad": source, "tokenizer": _tokenizer(config)}


def dataset_name(config: Mapping[str, Any]) -> str:
    """Return squad_{train_size}x{eval_size}x{max_length}_{8 hex digits of a SHA-256 of the parameters}.

    The digest leaves out paths, so that moved files keep the name, and the seed: another seed replaces the set.
    """
    made_from = parameters(config)
    named_by = {
        key: {name: value for name, value in part.items() if name != "path"} if isinstance(part, dict) else part
        for key, part in made_from.items()
        if key != "seed"
    }
    digest = hashlib.sha256(json.dumps(named_by, sort_keys=True).encode()).hexdigest()[:8]
    return f"{KIND}_" + "{train_size}x{eval_size}x{max_length}".format(**made_from) + f"_{digest}"


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return {dataset_name(config): {"kind", "parameters", "files"}}, as the planner asks an experiment for."""
    return {dataset_name(config): {"kind": KIND, "parameters": parameters(config), "files": list(FILES)}}


def key(labels: str, part: str, name: str) -> str:
    """Return an array's key in tokens.npz, such as "answer.training.input_ids"."""
    return f"{labels}.{part}.{name}"


def read(folder: Path, dataset: str, labels: str) -> TokenisedSet:
    """Read folder/dataset with the labels of one of prompts.LABELS."""
    import numpy as np

    place = folder / dataset
    with np.load(place / ARRAYS, allow_pickle=False) as held:
        arrays = {
            part: {
                name: held[key(labels, part, name)].astype(np.int64)
                for name in ("input_ids", "attention_mask", "labels")
                if key(labels, part, name) in held
            }
            for part in ("training", "evaluation", "prompts")
        }
    facts = json.loads((place / FACTS).read_text(encoding="utf-8"))
    tokenizer = (place / TOKENIZER).read_text(encoding="utf-8")
    return TokenisedSet(**arrays, references=facts["references"], facts=facts, tokenizer=tokenizer)
