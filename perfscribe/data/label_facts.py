"""What a way to label really trains, counted on the token arrays themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from perfscribe.data.prompts import ANSWER, IGNORED, Batch, TokenIds
from perfscribe.data.squad import Question


def _after_marker(row: np.ndarray, labels: np.ndarray, marker: list[int], firsts: set[int]) -> tuple[bool, bool]:
    """Whether the marker stands in the row, and whether the label after its last place begins the answer."""
    width = len(marker)
    for start in range(len(row) - width, -1, -1):
        if row[start : start + width].tolist() == marker:
            after = start + width
            return True, after < len(row) and int(labels[after]) in firsts
    return False, False


def count(batch: Batch, rows: Sequence[Question], ids: TokenIds) -> dict[str, Any]:
    """Counts over rows and over the targets of a loss that predicts the next token.

    targets: labels that count, the first position, which nothing predicts, left out. targets_read: those that are also
    the input's token at their own place, so that the model reads what it was to say. rows_with_marker: rows whose
    input holds `Answer:`. rows_asked: those of them where the label after it is the first token of the answer. tokens:
    of all rows, without padding; longest: of the longest row, as cut.
    """
    if batch.labels is None:
        raise ValueError("a batch without labels trains nothing")
    counted = batch.labels[:, 1:] != IGNORED
    same = batch.labels[:, 1:] == batch.input_ids[:, 1:]
    marker = ids.of(ANSWER)
    found = []
    for row, labels, question in zip(batch.input_ids, batch.labels, rows, strict=True):
        answer = question.answers[0]
        firsts = {form[0] for form in (ids.of(f" {answer}"), ids.of(answer)) if form}
        found.append(_after_marker(row, labels, marker, firsts))
    return {
        "rows": len(rows),
        "tokens": int(batch.attention_mask.sum()),
        "longest": int(batch.attention_mask.sum(axis=1).max()),
        "targets": int(counted.sum()),
        "targets_read": int((counted & same).sum()),
        "rows_with_marker": sum(marked for marked, _ in found),
        "rows_asked": sum(asked for _, asked in found),
        "cut": batch.cut,
    }
