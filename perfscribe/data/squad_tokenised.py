"""Makes the data sets of the kind "squad": rows drawn, a tokenizer trained or read, every way to label tokenised."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perfscribe.base.atomic import replacing
from perfscribe.data import label_facts, own_tokenizer, squad, tokenizer
from perfscribe.data.prompts import LABELS, Batch, TokenIds, generation_batch, training_batch
from perfscribe.data.squad_sets import ARRAYS, FACTS, FILES, HUB, TOKENIZER, from_checkout, key


def _tokenizer(
    source: Mapping[str, str] | None, drawn: squad.Drawn, asked: int
) -> tuple[TokenIds, dict[str, Any], str]:
    """The tokenizer, what it is, and the text of its file."""
    if source is None:
        trained = tokenizer.train(squad.texts(drawn.training), asked)
        ids = TokenIds(trained, trained.pad_id, trained.end_id)
        kind, reached, text = "trained", trained.vocab_size, str(trained.inner.to_str())
    else:
        own = own_tokenizer.load(_fetched(source[HUB]) if HUB in source else from_checkout(source["path"]))
        ids, kind, reached, text = own.ids, "own", own.vocab_size, own.text
    sizes = {"vocabulary_asked": asked, "vocabulary_reached": reached}
    return ids, {"kind": kind, **sizes, "pad_id": ids.pad_id, "end_id": ids.end_id}, text


def _fetched(model_name: str) -> Path:
    """The folder of the hub's cache with the model's tokenizer; ValueError with one line without a network."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model_name, allow_patterns=["tokenizer*.json", "config.json"]))
    except Exception as error:  # many kinds: no network, no such model, no room
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"workshop.weights: hub: the tokenizer of {model_name} cannot be fetched: {line}") from None


def _arrays(labels: str, part: str, batch: Batch) -> dict[str, np.ndarray]:
    named = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "labels": batch.labels}
    return {key(labels, part, name): array for name, array in named.items() if array is not None}


def _source(questions: squad.Questions) -> dict[str, Any]:
    return {
        "name": questions.name,
        "sha256": questions.sha256,
        "questions": len(questions.rows),
        "misplaced_answers": questions.misplaced,
    }


def tokenised(made_from: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any], str]:
    """Arrays by name, facts, and the tokenizer's file; made_from: squad_sets.parameters(config)."""
    source, length = made_from["squad"], made_from["max_length"]
    path = None if source is None else from_checkout(source["path"])
    drawn = squad.obtain(path, made_from["train_size"], made_from["eval_size"], made_from["seed"])
    ids, told, text = _tokenizer(made_from["tokenizer"], drawn, made_from["vocab_size"])
    arrays: dict[str, np.ndarray] = {}
    trains: dict[str, Any] = {}
    for labels in LABELS:
        training = training_batch(drawn.training, ids, length, labels)
        evaluation = training_batch(drawn.evaluation, ids, length, labels)
        room = length - made_from["new_tokens"] if labels == "answer" else length
        prompts = generation_batch(drawn.evaluation, ids, room, labels)
        for part, batch in (("training", training), ("evaluation", evaluation), ("prompts", prompts)):
            arrays |= _arrays(labels, part, batch)
        trains[labels] = label_facts.count(training, drawn.training, ids)
    facts = {
        "origin": drawn.origin,
        "sources": [_source(questions) for questions in drawn.sources],
        "rule": drawn.rule,
        "tokenizer": told,
        "trains": trains,
        "references": {row.id: list(row.answers) for row in drawn.evaluation},
    }
    return arrays, facts, text


def _as_bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def generate(plan: Mapping[str, Any], folder: Path) -> tuple[list[str], Mapping[str, np.ndarray]]:
    """Write the data set of plan["parameters"] below the folder; returns its files and what its digest is over.

    Facts, references and tokenizer are in the digest too, as scores depend on them.
    """
    arrays, facts, text = tokenised(plan["parameters"])
    named: dict[str, Any] = dict(arrays)
    told = json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    with replacing(folder / ARRAYS) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **named)
    for name, content in ((FACTS, told), (TOKENIZER, text)):
        with replacing(folder / name) as temporary:
            temporary.write_text(content, encoding="utf-8")
    return list(FILES), {**arrays, FACTS: _as_bytes(told), TOKENIZER: _as_bytes(text)}
