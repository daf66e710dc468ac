"""Speed-ups of compiled over eager from the turns of a cell, with what they cost to compile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from perfscribe.instruments.interleaving import split
from perfscribe.instruments.memory import CUDA_COUNTER
from perfscribe.instruments.statistics import Ratio, format_figure, ratio, summarise
from perfscribe.records.records import Record
from perfscribe.show.tables import GIB

# The phases whose ratios are shown, and the one that is a whole pass, by problem.
PHASES = {"attention": ("forward", "backward", "both"), "model": ("forward", "backward", "full_step")}
WHOLE = {"attention": "both", "model": "full_step"}
TITLES = {
    "forward": "Forward",
    "backward": "Backward",
    "both": "Both",
    "full_step": "Full step",
    "optimizer": "Optimizer",
}
TOO_FEW_TURNS = "too few turns"


def cells_of(records: Iterable[Record], problem: str) -> list[Record]:
    """The cells of one problem, with the ratios of those that are ok among their values."""
    return [_with_ratios(record) for record in records if record.factors["problem"] == problem]


def _with_ratios(record: Record) -> Record:
    if not record.ok:
        return record
    values = dict(record.values)
    for phase in PHASES[record.factors["problem"]]:
        values |= _named(phase, of_phase(record, phase))
    values["turns"] = int(record.factors["turns"]) * len(record.samples["compiled_forward_ms"])
    return replace(record, values=values | _cost(record))


def of_phase(record: Record, phase: str) -> Ratio:
    """Compiled over eager, turn by turn; eager against itself says what an effect must exceed."""
    eager, compiled, again = (
        _turns(record.samples[f"{variant}_{phase}_ms"], int(record.factors["turns"]))
        for variant in ("eager", "compiled", "eager_again")
    )
    return ratio(eager, compiled, again)


def _turns(rounds: Sequence[list[float]], turns: int) -> list[list[float]]:
    """The samples of each turn, of all rounds."""
    return [turn for samples in rounds for turn in split(list(samples), turns)]


def _named(phase: str, found: Ratio) -> dict[str, Any]:
    """The ratio as a speed-up, as write-ups print it: eager over compiled, above 1 where compiling pays."""
    named: dict[str, Any] = {f"{phase}_speedup": 1 / found.ratio, f"{phase}_verdict": found.verdict}
    if found.low is None or found.high is None:
        too_few = ("interval", "low", "high", "speedup_spread", "self_percent")
        return named | {f"{phase}_{name}": TOO_FEW_TURNS for name in too_few}
    low, high = 1 / found.high, 1 / found.low
    named |= {f"{phase}_interval": f"{format_figure(low)} to {format_figure(high)}"}
    named |= {f"{phase}_low": low, f"{phase}_high": high}
    named[f"{phase}_speedup_spread"] = (high - low) / 2
    named[f"{phase}_self_percent"] = 100 * (found.aa_spread or 0.0)
    return named


def _cost(record: Record) -> dict[str, Any]:
    """Seconds of compilation, and after how many passes eager would have taken as long."""
    whole = WHOLE[record.factors["problem"]]
    eager_ms, compiled_ms = (summarise(record.samples[f"{v}_{whole}_ms"]).median for v in ("eager", "compiled"))
    first_ms = [float(one) for one in record.series["first_passes_ms"]]
    compile_s = max(0.0, sum(first_ms) - len(first_ms) * compiled_ms) / 1e3
    verdict = of_phase(record, whole).verdict
    pays = compile_s * 1e3 / (eager_ms - compiled_ms) if verdict == "faster" and eager_ms > compiled_ms else None
    return {"compile_s": compile_s, "pays_after": "never here" if pays is None else pays}


def what(record: Record) -> str:
    """What was compiled, in a word."""
    f = record.factors
    return f"attention, d_model {f['head_dim']}" if f["problem"] == "attention" else f"model {f['size']}"


def compiled_peak_gib(record: Record) -> float | str:
    """Peak of the allocator in a compiled pass; CUDA graphs hold theirs in a pool that a replay does not touch."""
    counted = float(record.values["peak_compiled_bytes"]) / GIB
    return "in the graphs' pool" if record.factors["implementation"] == "cuda_graphs" else counted


def reserved_gib(variant: str) -> Any:
    """What the caching allocator held of the device, as a column's function."""

    def get(record: Record) -> float | str:
        if record.values["memory_counter"] != CUDA_COUNTER:
            return "no caching allocator"
        return float(record.values[f"peak_{variant}_reserved_bytes"]) / GIB

    return get
