"""Expected times of cells, for `./run plan` and for the progress of a run."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from perfscribe.base import files
from perfscribe.records import journal

# Processes, imports, tables and figures of a job: 150 s for 30 experiments on two cores.
START_S = 5.0
MOST_GROWTH = 3
# Prior weight, in s of measured cells, of the ratio 1 to a committed site's times.
PRIOR_S = 30.0


class Due(NamedTuple):
    """Properties of a cell that predict its time.

    levels: all factors, as JSON. kind: those that are not numbers, as JSON. cost: in a unit of the experiment's own.
    """

    experiment: str
    levels: str
    kind: str
    cost: float


def due(experiment: str, factors: Mapping[str, Any], cost: float = 0.0) -> Due:
    """Return the Due of a cell with these factors; its kind leaves out numbers, which count only by the cost."""
    kind = {n: level for n, level in factors.items() if isinstance(level, bool) or not isinstance(level, int | float)}
    return Due(experiment, files.canonical(dict(factors)), files.canonical(kind), cost)


@dataclass
class Pace:
    """Totals of measured cells, which predict the time of others.

    Expected: the shortest time plus a share, by cost, of what all took beyond it (together at most MOST_GROWTH times
    the longest time, since a first cell includes one-time costs), plus the mean time of compiling.
    """

    quickest_s: float = float("inf")
    longest_s: float = 0.0
    cells: int = 0
    wall_s: float = 0.0
    cost: float = 0.0
    compile_s: float = 0.0

    def add(self, wall_s: float, cost: float, compile_s: float = 0.0) -> None:
        """Count a finished cell. compile_s: part of wall_s."""
        wall_s = max(0.0, wall_s - compile_s)
        self.quickest_s, self.longest_s = min(self.quickest_s, wall_s), max(self.longest_s, wall_s)
        self.cells, self.wall_s, self.cost = self.cells + 1, self.wall_s + wall_s, self.cost + cost
        self.compile_s += compile_s

    def expected_s(self, cost: float) -> float:
        """Expected time of a cell of this cost."""
        beyond_s = self.wall_s - self.cells * self.quickest_s
        by_cost_s = self.quickest_s + (beyond_s * cost / self.cost if self.cost > 0 else 0.0)
        return min(by_cost_s, MOST_GROWTH * self.longest_s) + self.compile_s / self.cells


class Estimate:
    """Expected times in s on this site, from the first that is known: the cell, its kind, its experiment.

    Each is looked up here first, then on the committed site of this preset with most cells of the experiment, whose
    times are multiplied by the ratio (here / there) of cells measured on both. Cost counts here only.
    """

    def __init__(self, root: Path, preset: str) -> None:
        self.root, self.preset = root, preset
        self.sites: dict[str, str] = {}  # committed site of each experiment that has cells never measured here
        self.here: dict[tuple[str, str], float] = {}  # s by experiment and levels
        self.there: dict[tuple[str, str], float] = {}
        # By experiment and kind ("" for all kinds): median s there, pace of cells here.
        self.usual_there: dict[tuple[str, str], float] = {}
        self.paces: defaultdict[tuple[str, str], Pace] = defaultdict(Pace)
        self.here_s = self.there_s = 0.0  # sums over cells measured on both

    def look_elsewhere(self, experiment: str, left: Iterable[Due]) -> None:
        """Read a committed site's times if some of these cells were never measured here."""
        if experiment in self.sites or all((experiment, cell.levels) in self.here for cell in left):
            return
        self.sites[experiment], cells = self._elsewhere(experiment)
        by_kind = defaultdict(list)
        for cell, wall_s in cells.items():
            self.there[experiment, cell.levels] = wall_s
            self._compare((experiment, cell.levels))
            for kind in (cell.kind, ""):
                by_kind[kind].append(wall_s)
        self.usual_there |= {(experiment, kind): median(of_kind) for kind, of_kind in by_kind.items()}

    def _elsewhere(self, experiment: str) -> tuple[str, dict[Due, float]]:
        """Return the committed site of this preset with most cells of the experiment, and s by cell; "", {} if none."""
        sites: dict[str, dict[Due, float]] = {"": {}}
        for folder in sorted(path.parent for path in (self.root / "results").glob("*/published.json")):
            if files.read_object(folder / "plan" / "index.json").get("preset") == self.preset:
                rows = journal.read(folder / "journal" / experiment).all_records()
                times = {due(experiment, r["factors"]): r["spent"]["wall_s"] for r in rows if r["spent"]["wall_s"]}
                sites[folder.name] = times
        return max(sites.items(), key=lambda item: len(item[1]))

    def _compare(self, place: tuple[str, str]) -> None:
        if place in self.here and place in self.there:
            self.here_s, self.there_s = self.here_s + self.here[place], self.there_s + self.there[place]

    def add(self, cell: Due, spent: Mapping[str, float]) -> None:
        """Add a cell measured here; spent: from its record."""
        wall_s = spent.get("wall_s", 0.0)
        if not wall_s:  # it could not start
            return
        self.here[cell.experiment, cell.levels] = wall_s
        self._compare((cell.experiment, cell.levels))
        for kind in (cell.kind, ""):
            self.paces[cell.experiment, kind].add(wall_s, cell.cost, spent.get("compile_s", 0.0))

    def expected_s(self, cell: Due) -> float | None:
        """Expected time of a cell; None if nothing is known of its experiment."""
        place = cell.experiment, cell.levels
        if place in self.here:
            return self.here[place]
        ratio = (self.here_s + PRIOR_S) / (self.there_s + PRIOR_S)
        if place in self.there:
            return self.there[place] * ratio
        for group in ((cell.experiment, cell.kind), (cell.experiment, "")):
            if group in self.paces:
                return self.paces[group].expected_s(cell.cost)
            if group in self.usual_there:
                return self.usual_there[group] * ratio
        return None

    def job_s(self, cells: Collection[Due]) -> float | None:
        """Expected time of a job that measures these cells, with start-up; None if a cell's time is unknown."""
        times = [seconds for cell in cells if (seconds := self.expected_s(cell)) is not None]
        return START_S + sum(times) if len(times) == len(cells) else None
