"""The sentences that answer torch_compile's questions."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from perfscribe.comparing.ratios import HOST_RUNS_DIFFER
from perfscribe.experiments.torch_compile import published as beside
from perfscribe.findings import CannotTell, from_to, need, one_setting
from perfscribe.statistics import format_figure

# What the tables call the factors that name a shape.
WORDS = {"seq_len": "sequence length", "head_dim": "d_model", "size": "size"}
SETTING = ("backend", "dtype", "device", "batch")
# The gain shrinks with size where the largest model's is smaller than the smallest's by more than this.
MARGIN = 0.05


def _numbers(rows: pd.DataFrame, column: str) -> pd.Series:
    return rows[column].astype(float)


def _range(values: pd.Series) -> str:
    return from_to(values, "{:.3g}×".format)


def _many(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _compiled(rows: pd.DataFrame, implementation: str = "compiled") -> tuple[pd.DataFrame, str]:
    """Rows of one setting without CUDA graphs (or with): of inductor where it was measured."""
    chosen = rows[rows["implementation"] == implementation] if len(rows) else rows
    of_inductor = chosen[chosen["backend"] == "inductor"] if len(chosen) else chosen
    return one_setting(chosen if of_inductor.empty else of_inductor, SETTING)


def _verdicts(rows: pd.DataFrame, phase: str) -> str:
    found = Counter(rows[f"{phase}_verdict"])
    parts = [f"{number} {verdict}" for verdict in ("faster", "slower", "cannot tell") if (number := found[verdict])]
    return f"{phase.replace('_', ' ')} {', '.join(parts).replace('cannot tell', 'that cannot be told')}"


def attention(rows: pd.DataFrame) -> str:
    """How many shapes gain, and by how much at the shortest and the longest sequence."""
    chosen, setting = _compiled(need(rows, 1, "shapes"))
    parts = []
    for length in dict.fromkeys((chosen["seq_len"].min(), chosen["seq_len"].max())):
        at = chosen[chosen["seq_len"] == length]
        parts.append(
            f"at {length} forward {_range(_numbers(at, 'forward_speedup'))}, backward "
            f"{_range(_numbers(at, 'backward_speedup'))}"
        )
    return (
        f"Compiled against eager over {_many(len(chosen), 'shape')} ({setting}): {_verdicts(chosen, 'forward')}; "
        f"{_verdicts(chosen, 'backward')}. Speed-up by sequence length: {'; '.join(parts)}. {_most_gain(chosen)}"
    )


def _most_gain(rows: pd.DataFrame) -> str:
    """The shape at which both passes together gain most; where no verdict says that any gains, the largest ratio."""
    faster = rows[rows["both_verdict"] == "faster"]
    among = rows if faster.empty else faster
    best = among.loc[_numbers(among, "both_speedup").idxmax()]
    ratio = f"{float(best['both_speedup']):.3g}× (interval {best['both_interval']}, {best['both_verdict']})"
    where = f"at {WORDS['seq_len']} {best['seq_len']}, {WORDS['head_dim']} {best['head_dim']}"
    if faster.empty:
        return f"Both passes together gain at no shape for sure; the largest ratio is {ratio} {where}."
    return f"Both passes together gain most {where}: {ratio}."


def models(rows: pd.DataFrame, times: pd.DataFrame) -> str:
    """Forward and full step of each model, and what of the step is not compiled."""
    chosen, setting = _compiled(need(rows, 1, "models"))
    listed = [
        f"{row['size']} at {row['seq_len']}: forward {float(row['forward_speedup']):.3g}× ({row['forward_verdict']}), "
        f"full step {float(row['full_step_speedup']):.3g}× ({row['full_step_verdict']})"
        for _, row in chosen.iterrows()
    ]
    less = int((_numbers(chosen, "full_step_speedup") < _numbers(chosen, "forward_speedup")).sum())
    same = times.loc[chosen.index]
    share = _numbers(same, "compiled_optimizer_ms") / _numbers(same, "compiled_full_step_ms")
    others = _other_dtypes(rows, times, chosen)
    return (
        f"Speed-up by compiling ({setting}): {'; '.join(listed)}. The full step gains less than its forward pass in "
        f"{less} of {_many(len(chosen), 'model')}; the optimizer, which is not compiled, takes "
        f"{from_to(share, '{:.0%}'.format)} of the compiled step.{others}"
    )


def _other_dtypes(rows: pd.DataFrame, times: pd.DataFrame, chosen: pd.DataFrame) -> str:
    """The same models in the other dtypes, with the times that the speed-ups are of."""
    first = chosen.iloc[0]
    alike = (rows["implementation"] == first["implementation"]) & (rows["backend"] == first["backend"])
    others = rows[alike & (rows["device"] == first["device"]) & (rows["dtype"] != first["dtype"])]
    parts = []
    for index, row in others.iterrows():
        eager, compiled = (format_figure(float(times.loc[index, f"{v}_forward_ms"])) for v in ("eager", "compiled"))
        parts.append(
            f"{row['size']} at {row['seq_len']} in {row['dtype']}: forward {float(row['forward_speedup']):.3g}× "
            f"({row['forward_verdict']}, {eager} to {compiled} ms), full step {float(row['full_step_speedup']):.3g}× "
            f"({row['full_step_verdict']})"
        )
    return f" Besides: {'; '.join(parts)}." if parts else ""


def trend(rows: pd.DataFrame) -> tuple[str, str]:
    """Whether larger models gain less, as a write-up says."""
    chosen, setting = _compiled(need(rows, 1, "models"))
    length = chosen["seq_len"].mode().max()
    at = need(chosen[chosen["seq_len"] == length].drop_duplicates("size"), 3, "sizes at one context")
    gains = _numbers(at, "full_step_speedup")
    listed = ", ".join(f"{gain:.3g}× ({size})" for gain, size in zip(gains, at["size"], strict=True))
    text = f"Speed-up of the full step by size ({setting}, context {length}): {listed}."
    claim = "A write-up (002) says that the relative gain decreases as models grow:"
    if gains.iloc[-1] < gains.iloc[0] * (1 - MARGIN):
        return f"{text} {claim} the largest model here gains less than the smallest.", "confirmed"
    return f"{text} {claim} the largest model here does not gain less than the smallest.", "contradicted"


def cuda_graphs(attention: pd.DataFrame, models: pd.DataFrame) -> tuple[str, str]:
    """What reduce-overhead adds to compiling alone, at the same shapes."""
    told = [
        found
        for rows, name, keys, phase in (
            (attention, "attention", {name: WORDS[name] for name in ("seq_len", "head_dim")}, "both"),
            (models, "full steps of models", {"size": "size", "seq_len": "context"}, "full_step"),
        )
        if (found := _graphs_over_compiled(rows, name, keys, phase))
    ]
    if not told:
        raise CannotTell("no shape was measured both with CUDA graphs and without; they need a CUDA device")
    text = " ".join(sentence for sentence, _ in told)
    return (
        f"{text} Each speed-up is over eager in turns, in a process of its own, and in times that launches bind two "
        f"processes may differ by a factor of {HOST_RUNS_DIFFER:g}: what the graphs add is told only where the "
        "intervals lie further apart than that.",
        "answered" if any(beyond for _, beyond in told) else "cannot tell",
    )


def _graphs_over_compiled(rows: pd.DataFrame, name: str, keys: dict[str, str], phase: str) -> tuple[str, bool] | None:
    """The sentence, and whether any ratio is beyond what processes differ by.

    keys: the factors that name a shape, as the tables call them.
    """
    if rows.empty:
        return None
    plain, graphed = (rows[rows["implementation"] == how] for how in ("compiled", "cuda_graphs"))
    both = graphed.merge(plain, on=[*keys, *SETTING], suffixes=("_graphs", "_plain"))
    if both.empty:
        return None
    column = f"{phase}_speedup"
    most, beyond = _added(both, keys, phase)
    return (
        f"With CUDA graphs the speed-up of {name} over eager is {_range(_numbers(both, f'{column}_graphs'))}, "
        f"without {_range(_numbers(both, f'{column}_plain'))} ({_many(len(both), 'shape')}). {most}"
    ), beyond


def _added(both: pd.DataFrame, keys: dict[str, str], phase: str) -> tuple[str, bool]:
    """The largest ratio of the two speed-ups, and at how many shapes its interval is beyond what processes differ by.

    Intervals over turns know nothing of how one process differs from the next.
    """
    ends = [f"{phase}_{end}" for end in ("low_graphs", "high_plain", "high_graphs", "low_plain")]
    low_graphs, high_plain, high_graphs, low_plain = both[ends].apply(pd.to_numeric, errors="coerce").to_numpy().T
    least, most = low_graphs / high_plain, high_graphs / low_plain
    gain = (_numbers(both, f"{phase}_speedup_graphs") / _numbers(both, f"{phase}_speedup_plain")).to_numpy()
    beyond = int((least > HOST_RUNS_DIFFER).sum())
    best = int(gain.argmax())
    where = ", ".join(f"{word} {both.iloc[best][key]}" for key, word in keys.items())
    # NaN where there were too few turns for an interval
    span = f" ({from_to((least[best], most[best]), '{:.3g}'.format)} by the intervals' ends)" if most[best] > 0 else ""
    number = f"{beyond} of {len(both)} {'is' if beyond == 1 else 'are'}" if beyond else "none is"
    return (
        f"The largest ratio of the two is {gain[best]:.3g}{span}, at {where}; {number} beyond what processes differ by."
    ), beyond > 0


def cost(rows: pd.DataFrame) -> str:
    """Seconds of compilation, when they pay, and what was not compiled as one graph."""
    chosen, setting = _compiled(need(rows, 1, "cells"))
    parts = []
    for name, of in (
        ("attention", chosen[chosen["compiled"].str.startswith("attention")]),
        ("whole models", chosen[chosen["compiled"].str.startswith("model")]),
    ):
        if of.empty:
            continue
        seconds = _numbers(of, "compile_s")
        pays = pd.to_numeric(of["pays_after"], errors="coerce").dropna()
        after = f"pays after {from_to(pays)} passes" if len(pays) else ""
        never = len(of) - len(pays)
        never_text = f"{'and never ' if after else 'pays never '}in {never} of {len(of)}" if never else ""
        parts.append(f"{name} {from_to(seconds)} s, which " + " ".join(filter(None, (after, never_text))))
    held = chosen[["peak_compiled_gib", "peak_eager_gib"]].apply(pd.to_numeric, errors="coerce").dropna()
    shares = held["peak_compiled_gib"] / held["peak_eager_gib"]
    peak = f" Compiled, a pass peaks at {from_to(shares, '{:.3g}'.format)} times eager's memory." if len(held) else ""
    breaks, again = int(_numbers(rows, "graph_breaks").sum()), int(_numbers(rows, "recompiles").sum())
    return (
        f"Compiling from empty caches takes ({setting}) {'; '.join(parts)}. Over all {len(rows)} cells there were "
        f"{_many(breaks, 'graph break')} and {_many(again, 'recompilation')}.{peak}"
    )


def published(attention: pd.DataFrame, models: pd.DataFrame) -> str:
    """Our speed-ups by inductor beside those that follow from published times of the same cells."""
    parts = []
    for rows, what, phases in (
        (attention, "attention", ("forward", "backward")),
        (models, "models", ("forward", "full_step")),
    ):
        parts += [
            text for phase in phases for source in beside.SOURCES if (text := _against(rows, what, phase, source))
        ]
    if not parts:
        raise CannotTell("no published time stands beside a cell that was measured here")
    return (
        "Speed-ups by compiling, here and there, at levels that differ in nothing that a source states, of the times "
        f"in the tables below (not turn by turn as above): {'; '.join(parts)}."
    )


def _against(rows: pd.DataFrame, what: str, phase: str, source: str) -> str:
    names = [f"{variant}_{phase}_ms_{source}" for variant in beside.VARIANTS]
    if rows.empty or not set(names) <= set(rows.columns):
        return ""
    rows = rows[rows["backend"] == "inductor"]
    theirs = rows[names].apply(pd.to_numeric, errors="coerce")
    known = theirs.notna().all(axis=1)
    if not known.any():
        return ""
    pairs, cells = len(theirs[known].drop_duplicates()), int(known.sum())
    # a source that does not state a level stands beside the cells of each
    beside_ours = "" if pairs == cells else f" beside {_many(cells, 'cell')} of ours, which it does not tell apart"
    there = theirs[known][names[0]] / theirs[known][names[1]]
    here = _numbers(rows[known], f"eager_{phase}_ms") / _numbers(rows[known], f"compiled_{phase}_ms")
    return (
        f"{what}, {phase.replace('_', ' ')}, {beside.SOURCES[source]} ({_many(pairs, 'pair')}{beside_ours}): "
        f"{_range(here)} here ({', '.join(dict.fromkeys(rows['device']))}), {_range(there)} there"
    )
