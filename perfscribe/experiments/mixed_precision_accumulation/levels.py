"""Keys of experiments.mixed_precision_accumulation with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import devices, experiment, number, whole

LEVELS = experiment(
    "The sum of many small equal terms in fp32, in fp16 and in a mix of both",
    terms=whole("number of terms in each sum", 1, 10_000_000, 1000),
    addend=number("value of each term", 0, 65_504, 0.01, above=True),
    device=devices(["cpu"], gpu=["cpu", "cuda"]),
)

SHOWN = Shown(tables=("cs336.mixed_precision_accumulation",))
