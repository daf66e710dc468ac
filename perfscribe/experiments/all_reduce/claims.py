"""The four findings of a published write-up, each held against what was measured here and against write-up 002.

What was measured here decides alone. Where a claim is about NCCL and no GPU is here, it cannot be told, and write-up
002's figures stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from perfscribe.findings import CannotTell, from_to, shown, shown_from_to
from perfscribe.references import Reference
from perfscribe.statistics import fit_power, format_figure

SOURCE = "cs336-writeup-002"
HERE, THERE = "Here, by the host clock", "In write-up 002"
HERE_BY_OWN = "Here, gloo by the host clock and NCCL by CUDA events"
UNKNOWN = "unknown"
HOST, DEVICE = "host_ms", "time_ms"
NAMES = {"gloo": "gloo", "nccl": "NCCL"}
BACKENDS = tuple(NAMES)
CLEARLY = 2.0  # "significantly faster": the median of the ratios is at least this
ROUGHLY = 0.15  # "roughly linearly": each exponent is within this of 1
LEAST_SIZES = 3
FROM_BYTES = 10**6  # the write-up's smallest message, whatever its MB is


@dataclass(frozen=True)
class Times:
    """Rows backend, world_size, size_bytes, message, time_ms, and iqr_ms where it is known. where: begins the sentence.

    By the host clock, which alone compares backends; or each backend by its own timer, to compare its processes.
    """

    rows: pd.DataFrame
    where: str

    def of(self, backend: str) -> pd.DataFrame:
        """The backend's rows."""
        return self.rows[self.rows["backend"] == backend]

    @property
    def missing(self) -> list[str]:
        """The names of the backends that were not timed."""
        return [name for backend, name in NAMES.items() if self.of(backend).empty]


def measured(table: pd.DataFrame, clock: str = HOST) -> Times:
    """What a table of this experiment says. clock: HOST, or DEVICE for each backend's own timer."""
    names = {name: name for name in ("backend", "world_size", "size_bytes", "message")}
    names |= {clock: "time_ms", f"{clock}_iqr": "iqr_ms"}
    rows = pd.DataFrame(columns=list(names.values())) if table.empty else table[list(names)].rename(columns=names)
    return Times(rows.reset_index(drop=True), HERE if clock == HOST else HERE_BY_OWN)


def published(known: Iterable[Reference]) -> Times:
    """The longest time of any rank in write-up 002, whose MB is not defined."""
    rows = [
        {
            "backend": ref.factors["backend"],
            "world_size": ref.factors["world_size"],
            "size_bytes": float(ref.factors["size_mb"]) * 2**20,
            "message": f"{ref.factors['size_mb']} MB",
            "time_ms": ref.value,
        }
        for ref in known
        if ref.source == SOURCE and ref.metric == "time_ms"
    ]
    place = ["backend", "world_size", "size_bytes", "message"]
    longest = pd.DataFrame(rows).groupby(place, as_index=False, sort=False)["time_ms"].max()
    return Times(longest.assign(iqr_ms=UNKNOWN), THERE)


Judge = Callable[[Times], tuple[str, bool | None]]


def _answer(claim: str, rule: str, here: Times, there: Times, judge: Judge) -> tuple[str, str]:
    """The claim, what both say of it, and the verdict of what was measured here. rule: when the claim holds."""
    if here.rows.empty:
        raise CannotTell("No all-reduce was measured")
    text, holds = _judged(here, judge)
    beside, _ = _judged(there, judge)
    if here.missing and holds is not False:  # one backend can contradict, not confirm
        text, holds = f"{text} {', '.join(here.missing)} was not measured here.", None
    verdict = "cannot tell" if holds is None else "confirmed" if holds else "contradicted"
    return f"Write-up 004 says: “{claim}”, {rule}. {text} {beside}", verdict


def _judged(times: Times, judge: Judge) -> tuple[str, bool | None]:
    """What these times say of a claim, and whether it holds by them; None where they cannot tell."""
    try:
        text, holds = judge(times)
    except CannotTell as reason:
        text, holds = str(reason), None
    return f"{times.where}: {text}.", holds


def backends(table: pd.DataFrame, there: Times) -> tuple[str, str]:
    """NCCL against gloo at the same size and number of processes."""

    def judge(times: Times) -> tuple[str, bool]:
        wide = _pairs(times)
        ratios = wide["gloo"] / wide["nccl"]
        spreads = _relative(wide["gloo_iqr"], wide["gloo"]) + _relative(wide["nccl_iqr"], wide["nccl"])
        text = (
            f"gloo takes {_least_to_most(ratios, spreads)} times as long as NCCL, "
            f"{format_figure(ratios.median())} in the median of {len(ratios)} pairs"
        )
        return text, bool(ratios.min() > 1 and ratios.median() >= CLEARLY)

    rule = f"taken here as: everywhere, and by {CLEARLY:g} times in the median"
    return _answer("NCCL+CUDA is significantly faster than Gloo+CPU", rule, measured(table), there, judge)


def _relative(iqr: pd.Series, times: pd.Series) -> pd.Series:
    """Interquartile ranges as shares of the times; 0 where none is known."""
    return pd.to_numeric(iqr, errors="coerce").fillna(0.0) / times


def _least_to_most(ratios: pd.Series, spreads: pd.Series) -> str:
    """The least and the greatest ratio, each no finer than both of its times spread, as shares of them."""
    return shown_from_to(pd.DataFrame({"ratio": ratios, "ratio_spread": ratios * spreads}), "ratio")


def _pairs(times: Times) -> pd.DataFrame:
    """Times by backend where both have one, each with its interquartile range."""
    place = ["world_size", "size_bytes", "message"]
    wide, iqr = (
        times.rows.pivot_table(index=place, columns="backend", values=name, sort=False, aggfunc="first")
        for name in ("time_ms", "iqr_ms")
    )
    if not set(BACKENDS) <= set(wide.columns) or wide.dropna(subset=list(BACKENDS)).empty:
        raise CannotTell("no size was timed with both backends")
    return wide.dropna(subset=list(BACKENDS)).astype(float).join(iqr.add_suffix("_iqr"))


def sizes(table: pd.DataFrame, there: Times) -> tuple[str, str]:
    """The exponent of the size, of each backend and number of processes."""

    def judge(times: Times) -> tuple[str, bool | None]:
        parts: list[str] = []
        short: list[str] = []
        hold: list[bool | None] = []
        for (backend, world_size), group in times.rows.groupby(["backend", "world_size"], sort=False):
            large = group[group["size_bytes"].astype(float) >= FROM_BYTES]
            sizes_ms = [large[name].astype(float).tolist() for name in ("size_bytes", "time_ms")]
            fit = fit_power(*sizes_ms) if len(large) else None
            if fit is None:
                hold.append(None)  # what is not told of one is not told of both
                short.append(f"{backend}, {world_size} processes")
                continue
            low, high = end_to_end(large)
            hold.append(_is_roughly_linear(low, high))
            parts.append(
                f"{fit.exponent:.2f} (standard error {fit.standard_error:.2f}, {fit.points} sizes; from end to end "
                f"{_span(low, high)}; {backend}, {world_size} processes)"
            )
        few = f"fewer than {LEAST_SIZES} sizes from 1 MB on"
        if not parts:
            raise CannotTell(few)
        text = f"time grows as the size to the power of {', '.join(parts)}"
        return (f"{text}; {few}: {'; '.join(short)}" if short else text), _together(hold)

    claim = "Duration scales roughly linearly with data size (both backends)"
    rule = (
        f"which is to mean as its power of 1, within {ROUGHLY:g}, from the smallest message of 1 MB and more to the "
        "largest, whatever times their interquartile ranges allow"
    )
    return _answer(claim, rule, measured(table), there, judge)


def end_to_end(group: pd.DataFrame) -> tuple[float, float]:
    """Least and greatest exponent between the smallest and the largest message, each half its IQR off its median.

    A fit's own standard error would not do: times that bend, as fixed costs make them, are no noise about a power.
    """
    by_size = group.assign(size_bytes=group["size_bytes"].astype(float)).sort_values("size_bytes", kind="stable")
    small, large = by_size.iloc[0], by_size.iloc[-1]
    sizes_apart = math.log(large["size_bytes"] / small["size_bytes"])
    (least_small, most_small), (least_large, most_large) = _reach(small), _reach(large)
    low = math.log(least_large / most_small) / sizes_apart if least_large > 0 else -math.inf
    return low, math.log(most_large / least_small) / sizes_apart if least_small > 0 else math.inf


def _reach(row: pd.Series) -> tuple[float, float]:
    """Half an interquartile range to either side of the time; the time alone where no range is known."""
    iqr = pd.to_numeric(row["iqr_ms"], errors="coerce")
    half, time_ms = 0.0 if math.isnan(iqr) else iqr / 2, float(row["time_ms"])
    return time_ms - half, time_ms + half


def _span(low: float, high: float) -> str:
    """The exponents from end to end; an end is infinite where the times spread as far as to nothing."""
    if math.isinf(low) or math.isinf(high):
        return f"above {low:.2f}" if math.isfinite(low) else f"below {high:.2f}" if math.isfinite(high) else "not told"
    return from_to((low, high), "{:.2f}".format)


def _is_roughly_linear(low: float, high: float) -> bool | None:
    """Whether these exponents lie within ROUGHLY of 1; None where they lie partly there."""
    if low >= 1 - ROUGHLY and high <= 1 + ROUGHLY:
        return True
    return False if high < 1 - ROUGHLY or low > 1 + ROUGHLY else None


def _together(hold: Sequence[bool | None]) -> bool | None:
    """Whether all hold: one that does not is enough to say no."""
    return False if False in hold else None if None in hold else True


def processes(table: pd.DataFrame, there: Times) -> tuple[str, str]:
    """The most processes against the fewest, at the same size, by each backend's own timer."""

    def judge(times: Times) -> tuple[str, bool | None]:
        parts: list[str] = []
        hold: list[bool | None] = []
        for backend, group in times.rows.groupby("backend", sort=False):
            grown = _growth(group)
            if grown is None:
                parts.append(f"{backend} was timed with one number of processes alone")
                hold.append(None)
                continue
            few, many, ratios, spreads, alike = grown
            left_out = f"{alike} of {alike + len(ratios)} sizes are not told apart; " if alike else ""
            if ratios.empty:
                parts.append(f"{backend} with {many} processes is not told apart from {few} at any size")
                hold.append(None)
                continue
            moved = (2 * (many - 1) / many) / (2 * (few - 1) / few)
            parts.append(
                f"{backend} takes {_least_to_most(ratios, spreads)} times as long with "
                f"{many} processes as with {few} ({left_out}each sends {format_figure(moved)} times as much)"
            )
            hold.append(bool(ratios.min() > 1 and ratios.max() < many / few))
        return "; ".join(parts), _together(hold)

    rule = (
        "which is to mean at every size whose interquartile ranges do not overlap, and by less than the processes grow"
    )
    return _answer("More processes increases duration, but modestly", rule, measured(table, DEVICE), there, judge)


def _growth(group: pd.DataFrame) -> tuple[int, int, pd.Series, pd.Series, int] | None:
    """The fewest and the most processes with sizes in common, the ratios of these with their spreads, as shares, and
    how many are not told apart.

    None with one number alone.
    """
    wide, iqr = (
        group.pivot_table(index="size_bytes", columns="world_size", values=name, sort=True, aggfunc="first")
        for name in ("time_ms", "iqr_ms")
    )
    counts = sorted(int(number) for number in wide.columns)
    for many in reversed(counts[1:]):
        both = wide[[counts[0], many]].dropna().astype(float)
        if not both.empty:
            ratios = both[many] / both[counts[0]]
            apart = [
                abs(row[many] - row[counts[0]]) > _half_iqrs(iqr, size, (counts[0], many))
                for size, row in both.iterrows()
            ]
            known = iqr.reindex(index=both.index, columns=both.columns)
            spreads = _relative(known[counts[0]], both[counts[0]]) + _relative(known[many], both[many])
            return counts[0], many, ratios[apart], spreads[apart], apart.count(False)
    return None


def _half_iqrs(iqr: pd.DataFrame, size: Hashable, counts: Sequence[int]) -> float:
    """Half of the interquartile ranges together, which medians farther apart than it do not share; 0 where unknown."""
    if not set(counts) <= set(iqr.columns) or size not in iqr.index:
        return 0.0
    found = pd.to_numeric(iqr.loc[size, list(counts)], errors="coerce")
    return 0.0 if found.isna().any() else float(found.sum()) / 2


def overhead(table: pd.DataFrame, there: Times) -> tuple[str, str]:
    """The smallest message that both backends sent."""

    def judge(times: Times) -> tuple[str, bool | None]:
        wide = _pairs(times).reset_index()
        least = wide[wide["size_bytes"] == wide["size_bytes"].min()]
        parts = [
            f"NCCL {shown(row, 'nccl')} ms and gloo {shown(row, 'gloo')} ms with {row['world_size']} processes"
            for _, row in least.iterrows()
        ]
        higher = least["nccl"] > least["gloo"]
        holds = True if higher.all() else None if higher.any() else False
        return f"{least['message'].iloc[0]} takes {'; '.join(parts)}", holds

    rule = "which is to mean a longer time for the smallest message that both sent"
    return _answer("NCCL has higher fixed overhead for small messages", rule, measured(table), there, judge)
