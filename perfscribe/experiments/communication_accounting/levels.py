"""experiments.communication_accounting has no keys of its own; what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import experiment

LEVELS = experiment("The pen-and-paper problem of a large model's memory and communication; nothing is timed")

SHOWN = Shown(tables=("cs336.communication_inputs", "cs336.communication_steps"))
