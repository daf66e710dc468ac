"""The sentences about training on one device, which the chapter's two experiments share."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pandas as pd

from perfscribe import references
from perfscribe.epoch_columns import main_device
from perfscribe.findings import CannotTell, counted, need
from perfscribe.squad_scores import exact_match, f1, workshop_f1
from perfscribe.statistics import format_figure as figure

SOURCE = "fsdp-workshop-003"
ADAM_BYTES = 16  # of fp32 weights, gradients and two moments, a parameter
REST_BYTES = 12  # the same without gradients
REPEATED = "New York, New York"


def _of(rows: pd.DataFrame, labels: str) -> Any:
    found = main_device(rows)
    return need(found[found["labels"] == labels], 1, f"trainings with labels {labels}").iloc[0]


def result(runs: pd.DataFrame) -> str:
    """What a training costs: time, rates, memory."""
    row = _of(runs, "answer")
    of_steps, of_trainer = float(row["samples_per_s"]), float(row["train_samples_per_s"])
    return (
        f"{row['model_name']}, {row['parameters']} parameters ({row['weights']} weights), wrapped by "
        f"{row['wrapped_by']}, takes {row['steps']} steps on {row['rows']} rows in {row['dtype']} on {row['device']}: "
        f"{figure(row['train_runtime_s'])} s, {figure(row['step_s'])} s a step (median, n = {row['step_s_n']}). "
        f"Trainer says {figure(of_trainer)} samples/s, its clock counting the evaluations and the first, cold steps; "
        f"the steps by themselves make {figure(of_steps)} samples/s, {figure(of_steps / of_trainer)} times as many."
    )


def memory(runs: pd.DataFrame) -> str:
    """Peak and rest, beside what fp32 weights and Adam's state need."""
    row = _of(runs, "answer")
    peak, rest, parameters = float(row["peak_gib"]), float(row["at_rest_gib"]), int(row["parameters"])
    state_gib = REST_BYTES * parameters / 2**30
    return (
        f"Memory peaks at {figure(peak)} GiB and is {figure(rest)} GiB at rest after a step, {figure(rest / peak)} of "
        f"the peak: a figure that is taken after steps, as the workshop's callback takes it, misses gradients and "
        f"activations. Weights and Adam's state, {REST_BYTES} bytes a parameter in fp32, are {figure(state_gib)} GiB; "
        f"with gradients {ADAM_BYTES} bytes, {figure(ADAM_BYTES * parameters / 2**30)} GiB."
    )


def utilisation(runs: pd.DataFrame) -> str:
    """What NVML says of the GPU, or why it says nothing."""
    row = _of(runs, "answer")
    found = row["gpu_utilisation_percent"]
    if isinstance(found, str):
        raise CannotTell(f"GPU utilisation: {found}")
    return (
        f"NVML calls the GPU {figure(found)} % utilised on average. That is the share of time in which any kernel was "
        "resident, not of the device's capacity."
    )


def losses(evaluations: pd.DataFrame, runs: pd.DataFrame) -> str | tuple[str, str]:
    """Whether the evaluation loss rises from epoch to epoch, as in the workshop's sample of a log."""
    row = _of(runs, "answer")
    rows = main_device(evaluations)
    ours = (
        need(rows[rows["labels"] == "answer"], 2, "evaluations")
        .sort_values("epoch", kind="stable")["eval_loss"]
        .astype(float)
    )
    known = sorted(references.find(references.load("fsdp"), "eval_loss"), key=lambda ref: float(ref.factors["epoch"]))
    printed = [float(ref.value or 0) for ref in known if ref.source == SOURCE]
    steps = list(pairwise(ours))
    rising = sum(later > earlier for earlier, later in steps)
    batch = round(row["rows"] * ours.size / row["steps"])
    text = (
        f"The log sample that the workshop prints has evaluation losses {', '.join(map(figure, printed))}: "
        f"over-fitting from the first epoch on. {_log_sample(batch)} Here they go from {figure(ours.iloc[0])} to "
        f"{figure(ours.iloc[-1])} over {len(ours)} epochs and rise in {rising} of {len(steps)} steps"
    )
    if row["weights"] == "random":
        return f"{text}, from random weights, which is no test of what it shows."
    return f"{text}.", "confirmed" if rising == len(steps) else "contradicted"


def _log_sample(batch: int) -> str:
    """By its own counts the sample is of other settings than the text's."""
    known = {ref.metric: float(ref.value or 0) for ref in references.load("fsdp") if ref.source == SOURCE}
    rows = known["train_runtime_s"] * known["train_samples_per_s"]
    steps = known["train_runtime_s"] * known["train_steps_per_s"]
    return (
        f"By its own rates it is {round(rows)} rows in {round(steps)} steps, a global batch of {round(rows / steps)} "
        f"in all its epochs, which is another setting than the text's, with which a step here takes "
        f"{counted(batch, 'row')}."
    )


def labels(rows: pd.DataFrame) -> str:
    """What the workshop's labels for BLOOM train, beside those with the answer in the sequence."""
    ours, theirs = _way(rows, "answer"), _way(rows, "source")
    return (
        f"The workshop tokenises prompt and answer apart, so that of its {theirs['targets']} targets "
        f"{theirs['targets_read']} stand in the input at their own place: the answer is never read, and is asked at "
        f"the places of the prompt's own last tokens. After “Answer:” it is asked in {theirs['rows_asked']} of "
        f"{theirs['train_size']} rows. With prompt and answer in one sequence and the prompt masked, all "
        f"{ours['targets_read']} of {ours['targets']} targets are read besides, and {ours['rows_asked']} of "
        f"{ours['train_size']} rows ask after “Answer:”."
    )


def truncation(rows: pd.DataFrame) -> str:
    """How many prompts lose their end."""
    ours, theirs = _way(rows, "answer"), _way(rows, "source")
    lost, kept = int(theirs["train_size"]) - int(theirs["rows_with_marker"]), int(ours["rows_with_marker"])
    return (
        f"Cut on the right at {theirs['max_length']} tokens, {lost} of {theirs['train_size']} prompts lose “Answer:”, "
        f"with which they end. Cut on the left of the context, {kept} of {ours['train_size']} keep it, and the "
        f"question too; the longest such row has {ours['longest']} tokens, and {figure(ours['filled_percent'])} % of "
        f"all positions hold one, the rest is padding. The tokenizer ({ours['tokenizer']}) has "
        f"{ours['vocabulary_reached']} entries, {ours['vocabulary_asked']} were asked; the data are "
        f"{ours['data_names']}."
        + ("" if lost or ours["longest"] >= ours["max_length"] else " No row is as long as that: here nothing is cut.")
    )


def copied_labels(rows: pd.DataFrame) -> str:
    """What the workshop's labels for its custom model are."""
    theirs = _way(rows, "source_prompt")
    return (
        f"The custom model's collator takes the prompt's ids for labels: {theirs['targets_read']} of "
        f"{theirs['targets']} targets are the input itself, and the answer is asked in {theirs['rows_asked']} of "
        f"{theirs['train_size']} rows. The single-node script does not shift the labels either: each position is to "
        "say the token that it reads."
    )


def copying(evaluations: pd.DataFrame) -> str:
    """What a model learns that is to say what it reads."""
    rows = main_device(evaluations)
    first, last = _ends(rows, "source")
    ours = _ends(rows, "answer")
    side = "down" if last < first else "up"
    return (
        f"With the workshop's labels the loss on questions that it never saw goes from {figure(first)} at the first "
        f"evaluation to {figure(last)} at the last, {_share(first, last)} {side}; with labels that train the "
        f"answer from {figure(ours[0])} to {figure(ours[1])}, {_share(*ours)} "
        f"{'down' if ours[1] < ours[0] else 'up'}. A model that is to say what it reads can bring its loss to zero by "
        "copying, so that a low one says nothing about answers."
    )


def _share(first: float, last: float) -> str:
    """How far the last lies from the first; small shares with a digit more, so that none stands as nothing."""
    share = abs(first - last) / first
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def _ends(rows: pd.DataFrame, labels_name: str) -> tuple[float, float]:
    """Evaluation loss at the first and the last evaluation."""
    found = need(rows[rows["labels"] == labels_name], 2, f"evaluations with labels {labels_name}").sort_values(
        "epoch", kind="stable"
    )
    losses_ = found["eval_loss"].astype(float)
    return float(losses_.iloc[0]), float(losses_.iloc[-1])


def scoring(answers: pd.DataFrame) -> str:
    """How the workshop's scores of the same answers differ."""
    row = need(answers, 1, "scored answers").iloc[0]
    answered = main_device(answers)
    differing = sum(
        answered[name].astype(float).ne(answered[f"workshop_{name}"].astype(float)).sum()
        for name in ("exact_match_percent", "f1_percent")
    )
    names = ("identical_exact_match_percent", "identical_f1_percent", "identical_workshop_f1_percent")
    exact, official, theirs = (figure(float(row[name])) for name in names)
    return (
        f"Answers that repeat each question's first reference word for word score {exact} % EM and {official} % F1 by "
        f"the official definition, {theirs} % F1 by the workshop's, whose overlap counts a repeated word once: "
        f"“{REPEATED}” against itself has EM {figure(exact_match(REPEATED, REPEATED))}, F1 "
        f"{figure(f1(REPEATED, REPEATED))} officially and {figure(workshop_f1(REPEATED, REPEATED))} there. Of the "
        f"{2 * len(answered)} scores measured here, {differing} differ between the two."
    )


def answered(answers: pd.DataFrame) -> str:
    """EM and F1 before and after training."""
    rows = main_device(answers)
    parts = []
    for labels_name, group in rows.groupby("labels", sort=False):
        by_time = group.set_index("training")
        need(by_time, 2, "scores")
        before, after = (by_time.loc[when] for when in ("before", "after"))
        parts.append(
            f"with the labels “{labels_name}” EM goes from {figure(before['exact_match_percent'])} to "
            f"{figure(after['exact_match_percent'])} % and F1 from {figure(before['f1_percent'])} to "
            f"{figure(after['f1_percent'])} %"
        )
    row = need(rows, 1, "scores").iloc[0]
    text = f"Over {row['questions']} questions {', '.join(parts)}"
    if row["weights"] == "random":
        raise CannotTell(
            f"{text}. The weights were random before training: this is no statement about the trained model"
        )
    return f"{text}."


def _way(rows: pd.DataFrame, way: str) -> Any:
    found = rows[rows["way"] == way]
    return need(found, 1, f"ways to label named {way}").iloc[0]
