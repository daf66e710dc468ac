"""Sentences of communication_accounting, each computed from the tables and held against the published answers."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe.findings import CannotTell, need
from perfscribe.statistics import format_figure

PUBLISHED = "published_"
TOLERANCE = 0.01  # of a published figure, for its rounding; whole devices must be the same
NONE_PUBLISHED = "For these inputs no answer is published."


def memory(given: pd.DataFrame, rows: pd.DataFrame) -> tuple[str, str]:
    """Part a."""
    at, know = _inputs(given), _steps(rows)
    text = (
        f"Weights, gradients and two moments take {know['state']:.0f} GiB in fp32, and what {at['tokens']} tokens save "
        f"for backward {know['saved']:.0f} GiB in bf16, {know['saved_per_token']} B each. This is the memory of "
        f"{know['devices_state']} devices of {at['device_memory_gb']} GB for the former alone and of {know['devices']} "
        f"for both (a GB being {at['gb_bytes']} B)."
    )
    agree, said = _against(rows)
    return f"{text} {said}", _verdict(agree)


def sharded(given: pd.DataFrame, rows: pd.DataFrame) -> tuple[str, str]:
    """Part b; a published number of devices that leaves out what stays whole is no answer where that does not fit."""
    at, know = _inputs(given), _steps(rows)
    needed, without = know["n_fsdp"], know["n_fsdp_divided"]
    text = (
        f"Of N_FSDP devices each holds (S + s A) / N_FSDP + (1 - s) A, here {know['divided']:.0f} GiB / N_FSDP + "
        f"{know['undivided']:.0f} GiB at {at['tokens']} tokens. "
    )
    limit = f"{at['fsdp_memory_gb']} GB"
    if needed == "none":
        text += (
            f"No N_FSDP brings this below {limit}: what stays whole on each device exceeds it alone above "
            f"{know['most_tokens']} tokens. State alone needs {know['n_fsdp_state']} devices; without the part that "
            f"stays whole it would be {without}."
        )
    else:
        text += f"It is below {limit} from N_FSDP = {needed} on; for state alone {know['n_fsdp_state']} are enough."
    agree, said = _against(rows)
    if agree and needed != without and _has_published(rows, "n_fsdp_divided"):
        said += " The published number of devices leaves out the part that stays whole, which the problem counts."
        agree = False
    return f"{text} {said}", _verdict(agree)


def bound(given: pd.DataFrame, rows: pd.DataFrame) -> tuple[str, str]:
    """Part c; a published bound for X and Y chosen best says too little where the given X and Y need more."""
    at, know = _inputs(given), _steps(rows)
    text = (
        f"With X and Y chosen best, compute takes as long as communication at {format_figure(know['best'])} tokens a "
        f"device, {know['best_batch']:.0f} on all {know['n']} devices; that needs X = {format_figure(know['best_x'])}. "
    )
    mesh, needs = f"X = {at['fsdp_devices']} and Y = {at['tensor_devices']}", know["summed"]
    if needs == "none":
        text += f"With {mesh} no batch is bound by compute while FSDP's and TP's communication take turns."
    else:
        text += (
            f"With {mesh} it is {format_figure(needs)} tokens a device and {know['summed_batch']:.0f} in all while "
            f"FSDP's and TP's communication take turns, {format_figure(know['hidden'])} and "
            f"{know['hidden_batch']:.0f} where they go on at once."
        )
    agree, said = _against(rows)
    if agree and _has_published(rows, "best") and (needs == "none" or needs > know["best"] * (1 + TOLERANCE)):
        said += f" But its source states it for {mesh}, which need more."
        agree = False
    return f"{text} {said}", _verdict(agree)


def remedies(bound_rows: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Part d."""
    before, know = _steps(bound_rows), _steps(rows)

    def falls_to(step: str) -> str:
        return f"{format_figure(know[step])} tokens a device ({know[step] / before['best']:.1%})"

    return (
        f"From {format_figure(before['best'])} tokens a device, X and Y chosen best, the least batch falls to "
        f"{falls_to('overlapped')} where FSDP and TP communicate at once on their own mesh axes, then with "
        f"Y = {format_figure(know['overlapped_y'])}; to {falls_to('one_byte')} where weights are gathered in one byte "
        f"each, as ZeRO++ does (Wang et al., arXiv:2306.10209); to {falls_to('both')} with both; and to "
        f"{falls_to('bandwidth')} with twice the bandwidth, as it goes with alpha^2. Pipeline parallelism spreads the "
        f"blocks over devices at little communication: even with a stage a block, handing on its output takes "
        f"{know['pipeline']:.1%} of the time of its compute at any batch. N is then the devices of one stage, and the "
        f"bound holds for a microbatch; m of them through p stages leave (p - 1) / (m + p - 1) of the time idle "
        f"(GPipe, Huang et al., arXiv:1811.06965), so that a batch shrinks only while m stays below p or idle time is "
        f"filled by interleaving backward passes."
    )


def _inputs(given: pd.DataFrame) -> dict[str, Any]:
    return dict(zip(need(given, 1, "inputs")["key"], given["value"], strict=True))


def _steps(rows: pd.DataFrame) -> dict[str, Any]:
    known = dict(zip(need(rows, 3, "steps")["step"], rows["value"], strict=True))
    if len(known) < len(rows):
        raise CannotTell("several sets of inputs")
    return known


def _has_published(rows: pd.DataFrame, step: str) -> bool:
    of_step = rows[rows["step"] == step]
    return any((of_step[name] != "none").any() for name in rows.columns if name.startswith(PUBLISHED))


def _against(rows: pd.DataFrame) -> tuple[bool | None, str]:
    """Whether all published figures agree, None where there are none; and a sentence that says which and how far."""
    shown, agree = [], []
    for name in (name for name in rows.columns if name.startswith(PUBLISHED)):
        known = rows[rows[name] != "none"]
        same = [_same(*row) for row in zip(known["value"], known[name], known["unit"], strict=True)]
        agree += same
        source = name.removeprefix(PUBLISHED)
        shown += [f"{sum(same)} of {len(same)} figures of {source}"] if same else []
    if not agree:
        return None, NONE_PUBLISHED
    return all(agree), f"The table reproduces {' and '.join(shown)} to within {TOLERANCE:.0%}, devices exactly."


def _same(ours: object, published: object, unit: object) -> bool:
    if not isinstance(ours, (int, float)) or not isinstance(published, (int, float)):
        return False
    return ours == published if unit == "devices" else abs(ours - published) <= TOLERANCE * published


def _verdict(agree: bool | None) -> str:
    return "answered" if agree is None else "confirmed" if agree else "contradicted"
