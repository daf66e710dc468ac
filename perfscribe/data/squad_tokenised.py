"""Makes data sets of kind "squad": draws rows, trains or loads a tokenizer, tokenises for every way to label."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfscribe.base.atomic import replacing
from perfscribe.data import squad, tokenizer
from perfscribe.data.prompts import ANSWER, IGNORED, LABELS, Batch, generation_batch, training_batch
from perfscribe.data.squad_sets import ARRAYS, FACTS, FILES, HUB, TOKENIZER, from_checkout, key


def _tokenizer(source: Mapping[str, str] | None, drawn: squad.Drawn, asked: int) -> tokenizer.Tokenizer:
    if source is None:
        return tokenizer.train(squad.texts(drawn.training), asked)
    return tokenizer.load(_fetched(source[HUB]) if HUB in source else from_checkout(source["path"]))


def _fetched(model_name: str) -> Path:
    """Return the hub cache's folder with the model's tokenizer; raises ValueError (one line) without a network."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model_name, allow_patterns=["tokenizer*.json", "config.json"]))
    except Exception as error:  # many kinds: no network, no such model, disk full
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"workshop.weights: hub: the tokenizer of {model_name} cannot be fetched: {line}") from None


def _trains(batch: Batch, rows: Sequence[squad.Question], ids: tokenizer.Tokenizer) -> dict[str, Any]:
    """Return counts over rows and over targets of the next-token loss for a batch as one labelling makes it.

    targets: labels that count, without the first position, which nothing predicts. targets_read: targets that are also
    the input token at the same position, so that the model reads what it should predict. rows_with_marker: rows whose
    input contains `Answer:`. rows_asked: those of them in which the label after it is the answer's first token. tokens:
    total of all rows, without padding; longest: tokens of the longest row, as cut.
    """
    assert batch.labels is not None
    counted = batch.labels[:, 1:] != IGNORED
    same = batch.labels[:, 1:] == batch.input_ids[:, 1:]
    marker, with_marker, asked = ids.encode(ANSWER), 0, 0
    for line, labels, row in zip(batch.input_ids, batch.labels, rows, strict=True):
        positions = (np.lib.stride_tricks.sliding_window_view(line, len(marker)) == marker).all(axis=1).nonzero()[0]
        if len(positions):
            with_marker += 1
            firsts = [ids.encode(form)[:1] for form in (f" {row.answers[0]}", row.answers[0])]
            after = int(positions[-1]) + len(marker)
            asked += labels[after : after + 1].tolist() in firsts
    return {
        "rows": len(rows),
        "tokens": int(batch.attention_mask.sum()),
        "longest": int(batch.attention_mask.sum(axis=1).max()),
        "targets": int(counted.sum()),
        "targets_read": int((counted & same).sum()),
        "rows_with_marker": with_marker,
        "rows_asked": asked,
        "cut": batch.cut,
    }


def tokenised(made_from: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any], str]:
    """Return the arrays by name, the facts and the tokenizer's text; made_from: squad_sets.parameters(config)."""
    source, length = made_from["squad"], made_from["max_length"]
    path = None if source is None else from_checkout(source["path"])
    drawn = squad.obtain(path, made_from["train_size"], made_from["eval_size"], made_from["seed"])
    ids = _tokenizer(made_from["tokenizer"], drawn, made_from["vocab_size"])
    arrays: dict[str, np.ndarray] = {}
    trains: dict[str, Any] = {}
    for labels in LABELS:
        training = training_batch(drawn.training, ids, length, labels)
        evaluation = training_batch(drawn.evaluation, ids, length, labels)
        room = length - made_from["new_tokens"] if labels == "answer" else length
        prompts = generation_batch(drawn.evaluation, ids, room, labels)
        for part, batch in (("training", training), ("evaluation", evaluation), ("prompts", prompts)):
            for name in ("input_ids", "attention_mask", "labels"):
                if getattr(batch, name) is not None:
                    arrays[key(labels, part, name)] = getattr(batch, name)
        trains[labels] = _trains(training, drawn.training, ids)
    facts = {
        "origin": drawn.origin,
        "sources": [{"name": s.name, "sha256": s.sha256, "questions": len(s.rows)} for s in drawn.sources],
        "rule": squad.RULE,
        "tokenizer": {
            "kind": "trained" if made_from["tokenizer"] is None else "own",
            "vocabulary_asked": made_from["vocab_size"],
            "vocabulary_reached": ids.inner.get_vocab_size(),
            "pad_id": ids.pad_id,
            "end_id": ids.end_id,
        },
        "trains": trains,
        "references": {row.id: list(row.answers) for row in drawn.evaluation},
    }
    return arrays, facts, ids.text


def generate(plan: Mapping[str, Any], folder: Path) -> tuple[list[str], Mapping[str, np.ndarray]]:
    """Write the data set of plan["parameters"] below the folder; returns its files and the arrays in its digest.

    The digest includes facts, references and tokenizer, as scores depend on them.
    """
    arrays, facts, text = tokenised(plan["parameters"])
    with replacing(folder / ARRAYS) as temporary, temporary.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)
    facts_json = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"  # not sorted: references as prompts
    texts = {FACTS: facts_json, TOKENIZER: text}
    for name, content in texts.items():
        with replacing(folder / name) as temporary:
            temporary.write_text(content, encoding="utf-8")
    return list(FILES), arrays | {name: np.frombuffer(c.encode(), dtype=np.uint8) for name, c in texts.items()}
