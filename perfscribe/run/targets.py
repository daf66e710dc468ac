"""Paths of a site's files in the workflow's rules."""

from dataclasses import dataclass

from perfscribe.plan.plan import Plan


@dataclass(frozen=True)
class Targets:
    """Input and output paths of rules, relative to the checkout."""

    plan: Plan

    @property
    def results(self) -> str:
        """Folder of the site's results."""
        return f"results/{self.plan.site}"

    @property
    def report(self) -> str:
        """Folder of the site's report."""
        return f"report/{self.plan.site}"

    def records_of(self, experiment: str) -> list[str]:
        """Records of all shards of an experiment."""
        shards = range(self.plan.shards[experiment])
        return [f"{self.results}/records/{experiment}/{shard}.jsonl" for shard in shards]

    def records(self) -> list[str]:
        """Records of all experiments."""
        return [path for experiment in self.plan.shards for path in self.records_of(experiment)]

    def records_for(self, experiment: str) -> list[str]:
        """Records from which an experiment's tables and figures are made."""
        return [path for name in self.plan.sources(experiment) for path in self.records_of(name)]

    def tables_of(self, experiment: str, kind: str) -> list[str]:
        """Tables of an experiment, as csv or json."""
        return [f"{self.results}/tables/{table}.{kind}" for table in self.plan.presentations[experiment].tables]

    def captions_of(self, experiment: str) -> str:
        """File with the captions of an experiment's figures."""
        return f"{self.results}/tables/{experiment}.figures.json"

    def figures_of(self, experiment: str) -> list[str]:
        """Figures of an experiment, as SVG."""
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
        """Digest files of the data sets that an experiment reads; they change only with the data."""
        return [f"{self.results}/data/{name}.digest" for name in self.plan.experiment_datasets[experiment]]

    def data_for(self, experiment: str) -> list[str]:
        """Data files that an experiment reads."""
        return [path for name in self.plan.experiment_datasets[experiment] for path in self.data(name)]

    def data(self, dataset: str) -> list[str]:
        """Files of a data set."""
        return [f"{self.results}/data/{dataset}/{file}" for file in self.plan.datasets[dataset]]
