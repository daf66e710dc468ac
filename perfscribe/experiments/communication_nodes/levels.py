"""Keys of experiments.communication_nodes with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import experiment

LEVELS = experiment("The same between two real nodes of a cluster; skipped elsewhere", **shared.PROFILED)

SHOWN = Shown(reads=("communication",), tables=("polaris.communication_nodes",))
