"""Keys of experiments.communication with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import experiment, whole

LEVELS = experiment(
    "The Polaris homework's training on two ranks of a node against a rank on each of two nodes, profiled, interleaved",
    **shared.PROFILED,
    samples=whole("samples of an epoch", 1, 1_073_741_824, 64, tiny=32, gpu=2048),
    epochs=whole("times that a training goes through them", 1, 100_000, 1, gpu=2),
    trainings=whole("trainings of each kind", 1, 1000, 3, tiny=1, gpu=1),
)

SHOWN = Shown(
    tables=(
        "polaris.communication",
        "polaris.communication_ranks",
        "polaris.communication_trainings",
    ),
    figures=("polaris.communication_wait",),
)
