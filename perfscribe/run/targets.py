"""The files of a site that the workflow's rules make and read, as they name them."""

from __future__ import annotations

from dataclasses import dataclass

from perfscribe.plan.plan import Plan
from perfscribe.tracking import trackers


@dataclass(frozen=True)
class Targets:
    """Paths relative to the checkout."""

    plan: Plan
    tracker: str = trackers.NONE

    @property
    def results(self) -> str:
        """Its folder of results."""
        return f"results/{self.plan.site}"

    @property
    def report(self) -> str:
        """Everything there is to read, without its last part."""
        return f"report/{self.plan.site}"

    def records_of(self, experiment: str) -> list[str]:
        """Records of all shards of an experiment."""
        shards = range(self.plan.shards[experiment])
        return [f"{self.results}/records/{experiment}/{shard}.jsonl" for shard in shards]

    def records(self) -> list[str]:
        """Those of all experiments."""
        return [path for experiment in self.plan.shards for path in self.records_of(experiment)]

    def records_for(self, experiment: str) -> list[str]:
        """Those that an experiment's tables and figures are made of."""
        return [path for name in self.plan.sources(experiment) for path in self.records_of(name)]

    def records_behind_self_tests(self, experiment: str) -> list[str]:
        """For `preflight` those of what waits for its tests: each of their jobs makes those that it needs itself."""
        gated = self.plan.gated if experiment == "preflight" else []
        return [path for name in gated for path in self.records_of(name)]

    def tables_of(self, experiment: str, kind: str) -> list[str]:
        """Its tables, as csv or json."""
        return [f"{self.results}/tables/{table}.{kind}" for table in self.plan.presentations[experiment].tables]

    def captions_of(self, experiment: str) -> str:
        """The captions of its figures."""
        return f"{self.results}/tables/{experiment}.figures.json"

    def figures_of(self, experiment: str) -> list[str]:
        """Its figures."""
        return [f"{self.report}/figures/{figure}.svg" for figure in self.plan.presentations[experiment].figures]

    def shown(self) -> list[str]:
        """Tables, captions and figures of all experiments."""
        return [
            path
            for name in self.plan.presentations
            for path in (
                *self.tables_of(name, "csv"),
                *self.tables_of(name, "json"),
                self.captions_of(name),
                *self.figures_of(name),
            )
        ]

    def digests_for(self, experiment: str) -> list[str]:
        """Digests of the data sets that an experiment reads; they change only with the arrays."""
        return [f"{self.results}/data/{name}.digest" for name in self.plan.experiment_datasets[experiment]]

    def data_for(self, experiment: str) -> list[str]:
        """The data files themselves."""
        return [path for name in self.plan.experiment_datasets[experiment] for path in self.data(name)]

    def data(self, dataset: str) -> list[str]:
        """The files of a data set."""
        return [f"{self.results}/data/{dataset}/{file}" for file in self.plan.datasets[dataset]]

    def tracked(self) -> list[str]:
        """The list of the runs that the chosen tracker has; nothing without one."""
        return [] if self.tracker == trackers.NONE else [f"{self.results}/tracking/{self.tracker}.json"]
