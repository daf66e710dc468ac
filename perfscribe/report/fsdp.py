"""The FSDP workshop: its problems, and where its scripts do otherwise than its text."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from perfscribe.analytic.workshop_shapes import BLOOM_TOKENIZER_VOCABULARY as VOCABULARY
from perfscribe.analytic.workshop_shapes import SimpleGptShape
from perfscribe.report.cells import NO_SUCH_THING, label, word
from perfscribe.report.fsdp_one_gpu import Baseline, CustomSingleNode, Strategies, WorldOfOne
from perfscribe.report.fsdp_several_gpus import (
    CustomMultiGpu,
    CustomMultiNode,
    LinkTest,
    MultiGpu,
    MultiNode,
    WeakScaling,
)
from perfscribe.report.problem import Part, Problem, Table, said
from perfscribe.report.site import entry, figure, ok
from perfscribe.show.rounding import Figure

TITLE = "FSDP workshop"
DEFECTS = Path(__file__).resolve().parents[2] / "docs" / "defects.csv"


class Defects(Problem):
    """What the workshop's scripts do otherwise than its text."""

    heading = "What the scripts do otherwise than the text"

    def parts(self) -> Iterator[Part]:
        """Each defect with what the site's tables show of it, or a link.

        Where a site's figures do not show it, the text of what was seen is empty.
        """
        with open(DEFECTS, newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        found = self.of_labels() | self.of_problems() | self.of_weak_scaling()
        seen = []
        for name in (row["finding"] for row in rows):
            link = f"[{Path(name).stem}](../../{name})" if name.endswith(".md") else ""
            text = "" if link else found[name.removeprefix("fsdp.")]
            seen.append(word(said(text)) if text else label(link) if link else NO_SUCH_THING)
        yield Table(
            "Where the scripts differ from the text.",
            "Seen here: figures of this report's tables, or computed.",
            ["#", "what", "seen here"],
            [[row["number"], row["defect"], cell] for row, cell in zip(rows, seen, strict=True)],
        )

    def of_weak_scaling(self) -> dict[str, str]:
        """Defects 1 to 5: its formula, and what it holds constant."""
        weak = WeakScaling(self.site)
        planned = list(filter(ok, weak.plans.values()))
        first, last = next(iter(planned), None), [None, *planned[1:]][-1]
        times = figure(first, "ran_steps").over(figure(first, "steps_per_epoch"))
        few = self.site.ranks(entry(first, "world_size"))
        on = f"on {entry(last, 'world_size')} as on {few}"
        # On a CPU the vocabulary is not the workshop's: the work is that of the answer.
        asked = "asked_tflop" if self.site.gpu else "tflop_per_gpu"
        ratios = [figure(last, one).over(figure(first, one)) for one in ("ran_tflop", asked, "ran_parameters")]
        ran, asked, larger = (unless(1, ratio, f"{ratio} times as large {on}.") for ratio in ratios)
        return {
            "defect_inverted": f"On {weak.on} the formula gives {weak.by_formula} % by step time{weak.mark}.",
            "defect_batches": f"On {few} an epoch has {times} times the steps.",
            "defect_neither": ran and f"A {self.site.rank}'s step is {ran}",
            "defect_work": asked and f"It is {asked}",
            "defect_doubling": larger and f"It is {larger}",
        }

    def of_labels(self) -> dict[str, str]:
        """Defects 6 to 8: what the labels train."""
        source, prompt = (self.site.row("fsdp.labels", way=way) for way in ("source", "source_prompt"))
        read, copied = (figure(row, "targets_read").share(figure(row, "targets")) for row in (source, prompt))
        rows, length = (replace(figure(source, name), exact=True) for name in ("train_size", "max_length"))
        lost = rows.value - figure(source, "rows_with_marker").value
        lose = "loses" if lost == 1 else "lose"
        return {
            "labels_answer": f"{read} % of the targets are in the input at the same position.",
            "labels_truncation": f"{lost:.0f} of {rows} prompts {lose} “Answer:” at {length} tokens.",
            "labels_copying": f"{copied} % of the targets are the input itself.",
        }

    def of_problems(self) -> dict[str, str]:
        """The others."""
        site, baseline, one, strategies = self.site, Baseline(self.site), WorldOfOne(self.site), Strategies(self.site)
        single = CustomSingleNode(site)
        copying = figure(single.least("source"), "eval_loss")
        # Of the single node's script and of the others, both with the tokenizer's vocabulary.
        shapes = SimpleGptShape(VOCABULARY, 1024, 1, 8, 8192, tied=False), SimpleGptShape(VOCABULARY)
        alone, several = (Figure(shape.parameters) for shape in shapes)
        answers = (site.rows(f"fsdp.{one}_answers", status="ok") for one in ("baseline", "custom_single_node"))
        scored = figure(next(chain(*answers), None), "identical_workshop_f1_percent")
        full, plain = (figure(one.found(setup), "peak_allocated_gib") for setup in ("FSDP1 FULL_SHARD", "without FSDP"))
        half, whole = (figure(strategies.found(name), "state_gib") for name in ("SHARD_GRAD_OP", "DDP"))
        kept = half.share(whole)
        levels = {"api": "FSDP1", "offload": "yes", "exchange": "with each micro-batch"}
        norm = site.value("fsdp.offload_accumulation", "norm_ratio", **levels).percent()
        least = f"Here evaluation loss is lowest after epoch {baseline.at_least()}, in the sample after epoch 1."
        return {
            "custom_copying": f"Evaluation loss falls to {copying} with its labels{single.mark}.",
            "custom_shapes": f"The model has {alone.share(several)} % of the other rows' parameters.",
            "scores": unless(100, scored, f"Answers equal to the reference score {scored} % F1."),
            "world_of_one": f"As NO_SHARD it needs {full.share(plain)} % of the memory without FSDP{one.mark}.",
            "sharding_words": unless(100, kept, f"SHARD_GRAD_OP keeps {kept} % of DDP's state per rank."),
            "offload": unless(100, norm, f"FSDP1's summed gradients have {norm} % of their norm."),
            "baseline_losses": "" if baseline.least() in baseline.epochs()[-1:] else least,
        }


def unless(plain: float, found: Figure, text: str) -> str:
    """The text, but nothing where the figure rounds to what would be without the defect."""
    return "" if found.quoted == Figure(plain).quoted else text


PROBLEMS = (
    Baseline,
    WorldOfOne,
    Strategies,
    MultiGpu,
    MultiNode,
    CustomSingleNode,
    CustomMultiGpu,
    LinkTest,
    CustomMultiNode,
    WeakScaling,
    Defects,
)
