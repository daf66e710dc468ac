"""Published figures: rows of references/<experiment>.csv, each with its source and hardware.

A row keeps the figure as printed in its source (text, unit); `Reference.value` is converted to the unit at the end of
the metric's name, which is the unit of the measured figure with that name.
references/sources.csv names every source. Formats and accepted units: SCALES and WORDS below.
"""

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
OF_ATTENTION = (OF_002, "brandon-snider", "yyin-dev")  # sources with times of kernels
WORDS = ("OOM", "N/A", "failed")  # words that sources print instead of a figure
TEXT_UNITS = ("dtype", "cores", "mask")  # units whose values are not numbers

# Last part of a metric's name -> units that a source may use -> factor to the metric's unit. GB and MB are for sources
# that do not say whether they mean 10^9 or 2^30 (10^6 or 2^20), so they are never converted; if it is known, the row
# says GiB, MiB or MB (10^6). "s/100" is seconds for 100 passes together.
SCALES: dict[str, dict[str, str]] = {
    "ms": {"ms": "1", "s": "1000", "us": "0.001", "ns": "0.000001", "s/100": "10"},
    "us": {"us": "1", "ns": "0.001"},
    "gib": {
        "GiB": "1",
        "MiB": "0.0009765625",
        "MB (10^6)": "0.000931322574615478515625",
        "GB (10^9)": "0.931322574615478515625",
    },
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
    value: the figure in the unit that `metric` ends in; None if the source prints a word (OOM, N/A, failed)
        or the figure is not a number (a dtype).
    text, unit: the figure as printed and its unit, which may differ from the metric's (s for _ms).
    remark: caveats for comparisons; "" if there are none.
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
        """The figure, or the word that the source prints instead."""
        return self.text if self.value is None else self.value


@cache
def load(experiment: str, folder: Path = FOLDER) -> list[Reference]:
    """Read the published figures of an experiment in file order, once per process; [] if there are none.

    ValueError names file and line of the first malformed row.
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
    """References of the metric whose factors include all given ones, from any or one source. 1 and 1.0 are equal."""
    return [
        ref
        for ref in load(experiment)
        if ref.metric == metric and source in ("", ref.source) and factors.items() <= ref.factors.items()
    ]


def short(source: str) -> str:
    """Short name of a source for column names."""
    return source.removeprefix("cs336-writeup-")


def shown(experiment: str, source: str, metric: str, levels: Mapping[str, object]) -> float | str:
    """First figure of the source for the metric whose factors are all among these levels; `none` if it has none."""
    figures = (ref.shown for ref in find(experiment, metric, source) if ref.factors.items() <= levels.items())
    return next(figures, "none")


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
    """Accepted units of the metric, by the longest matching suffix of its name in SCALES."""
    endings = [ending for ending in SCALES if metric == ending or metric.endswith(f"_{ending}")]
    if not endings:
        raise ValueError(f"metric: {metric!r}: expected a name that ends in one of {', '.join(SCALES)}")
    scales = SCALES[max(endings, key=len)]
    if unit not in scales:
        raise ValueError(f"unit: {unit!r}: expected one of {', '.join(scales)} for {metric}")
    return scales
