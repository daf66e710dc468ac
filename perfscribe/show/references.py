"""Published figures: the rows of references/<experiment>.csv, each with its source and hardware.

A row keeps the figure as its source prints it (text, unit); `Reference.value` is the same figure in the unit
that the metric's name ends in, so that it stands beside a measured figure of that name without conversion.
references/sources.csv names every source. Formats and accepted units: SCALES and WORDS below.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path

Level = str | int | float | bool

FOLDER = Path(__file__).resolve().parents[2] / "references"
OF_002, OF_004 = "cs336-writeup-002", "cs336-writeup-004"
OF_ATTENTION = (OF_002, "brandon-snider", "yyin-dev")  # who print times of kernels
WORDS = ("OOM", "N/A", "failed")  # what sources print in place of a figure
TEXT_UNITS = ("dtype", "cores", "mask")  # units whose values are no numbers

# Last part of a metric's name -> units that a source may use -> factor to the metric's own unit. GB and MB stand
# for sources that leave 10^9 or 2^30 (10^6 or 2^20) open, so they convert into nothing; where it is known which,
# the row says GiB, MiB or MB (10^6). "s/100" is seconds for 100 passes together.
SCALES: dict[str, dict[str, str]] = {
    "ms": {"ms": "1", "s": "1000", "us": "0.001", "ns": "0.000001", "s/100": "10"},
    "us": {"us": "1", "ns": "0.001"},
    "gib": {"GiB": "1", "MiB": "0.0009765625", "MB (10^6)": "0.000931322574615478515625"},
} | {
    name: {unit: "1"}
    for unit, names in {
        "s": "s",
        "MiB": "mib",
        "GB": "gb",
        "MB": "mb",
        "bytes": "bytes",
        "%": "percent",
        "TFLOP/s": "tflop_per_s",
        "GB/s": "gb_per_s",
        "samples/s": "samples_per_s",
        "steps/s": "steps_per_s",
        "tokens/s": "tokens_per_s",
        "x": "ratio speedup",
        "count": "count",
        "1": "sum loss addend error",
        "dtype": "dtype",
        "cores": "cores",
        "mask": "mask",
    }.items()
    for name in names.split()
}

_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][+-]?\d+)?")


@dataclass(frozen=True)
class Reference:
    """One published figure.

    factors: level by factor name; whole numbers are int, other numbers float, true and false bool, the rest str.
    value: the figure in the unit that `metric` ends in; None where the source prints a word (OOM, N/A, failed)
        or where the figure is no number (a dtype).
    text, unit: the figure as printed and the unit it is printed in, which may differ from the metric's (s for _ms).
    remark: what a reader must know before comparing; "" where there is nothing.
    """

    experiment: str
    factors: Mapping[str, Level]
    metric: str
    value: float | None
    text: str
    unit: str
    hardware: str
    source: str
    remark: str

    @property
    def shown(self) -> float | str:
        """The figure, or the word that the source prints in its place."""
        return self.text if self.value is None else self.value


@cache
def load(experiment: str, folder: Path = FOLDER) -> list[Reference]:
    """Published figures of an experiment in file order; [] where there are none. Read once a process.

    ValueError naming file and line for the first bad row.
    """
    path = folder / f"{experiment}.csv"
    if not path.exists():
        return []
    references: list[Reference] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        for row in reader:
            try:
                references.append(_reference(row))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
    return references


def find(experiment: str, metric: str, source: str = "", **factors: Level) -> list[Reference]:
    """References of the metric whose factors include all the given ones; source: of one alone. 1 and 1.0 are equal."""
    return [
        one
        for one in load(experiment)
        if one.metric == metric and source in ("", one.source) and factors.items() <= one.factors.items()
    ]


def short(source: str) -> str:
    """A source as columns name it."""
    return source.removeprefix("cs336-writeup-")


def shown(experiment: str, source: str, metric: str, levels: Mapping[str, object]) -> float | str:
    """The source's first figure of the metric, all of whose stated levels are among these; `none` where it has none."""
    found = (one.shown for one in find(experiment, metric, source) if one.factors.items() <= levels.items())
    return next(found, "none")


def _reference(row: dict[str, str]) -> Reference:
    parts = [part.partition("=") for part in row["factors"].split(";") if part]
    return Reference(
        factors={name: _level(level) for name, _, level in parts},
        value=_value(row["value"], row["unit"], row["metric"]),
        text=row["value"],
        **{name: row[name] for name in ("experiment", "metric", "unit", "hardware", "source", "remark")},
    )


def _level(text: str) -> Level:
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) and "," not in text else text


def _value(text: str, unit: str, metric: str) -> float | None:
    scale = Decimal(_scales(metric, unit)[unit])
    if text in WORDS or unit in TEXT_UNITS:
        return None
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"value: {text!r}: expected a number or one of {', '.join(WORDS)}")
    return float(Decimal(text.replace(",", "")) * scale)


def _scales(metric: str, unit: str) -> dict[str, str]:
    """Accepted units of the metric, by the longest ending of its name that SCALES knows."""
    endings = [ending for ending in SCALES if metric == ending or metric.endswith(f"_{ending}")]
    if not endings:
        raise ValueError(f"metric: {metric!r}: expected a name that ends in one of {', '.join(SCALES)}")
    scales = SCALES[max(endings, key=len)]
    if unit not in scales:
        raise ValueError(f"unit: {unit!r}: expected one of {', '.join(scales)} for {metric}")
    return scales
