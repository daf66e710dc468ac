"""Greedy answers of a model to a tokenised set's evaluation questions, and their scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from perfscribe.data.tokenizer import texts_of
from perfscribe.instruments import precision
from perfscribe.training.squad_scores import Scores, score, workshop_score

if TYPE_CHECKING:
    from perfscribe.data.squad_sets import TokenisedSet


@torch.no_grad()
def generate(model: Any, data: TokenisedSet, new_tokens: int, batch: int, device: str, dtype: str) -> dict[str, str]:
    """Text by question id: greedy, at most new_tokens ids each, up to the first end."""
    told, texts = data.facts["tokenizer"], []
    was_training = model.training
    model.eval()
    ids, mask = (torch.from_numpy(data.prompts[name]).to(device) for name in ("input_ids", "attention_mask"))
    with precision.autocast(device, dtype):
        for start in range(0, len(ids), batch):
            part = slice(start, start + batch)
            found = model.generate(
                input_ids=ids[part],
                attention_mask=mask[part],
                max_new_tokens=new_tokens,
                do_sample=False,
                use_cache=True,
                pad_token_id=told["pad_id"],
                eos_token_id=told["end_id"],
            )
            texts += texts_of(found[:, ids.size(1) :].tolist(), data.tokenizer, told["end_id"])
    model.train(was_training)
    return dict(zip(data.references, texts, strict=True))


def scored(texts: dict[str, str], data: TokenisedSet) -> dict[str, float]:
    """Exact match and F1 in percent, by the official definition and by the workshop's."""
    return _figures(score(texts, data.references), "") | _figures(workshop_score(texts, data.references), "workshop_")


def identical(data: TokenisedSet) -> dict[str, float]:
    """The same scores of answers that are each question's first reference, word for word: 100 by a right definition."""
    texts = {name: answers[0] for name, answers in data.references.items()}
    return {f"identical_{name}": figure for name, figure in scored(texts, data).items()}


def _figures(scores: Scores, prefix: str) -> dict[str, float]:
    return {f"{prefix}exact_match_percent": scores.exact_match_percent, f"{prefix}f1_percent": scores.f1_percent}
