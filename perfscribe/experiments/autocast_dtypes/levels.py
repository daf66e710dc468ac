"""Keys of experiments.autocast_dtypes with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import choices, devices, experiment, number, numbers, whole

LEVELS = experiment(
    "Dtype of each part of a small model under autocast, and accuracy of the variance in LayerNorm",
    device=devices(["cpu"], gpu=["cuda"]),
    dtype=choices("autocast dtypes", ["fp16", "bf16"]),
    variance_mean=numbers(
        "means of the LayerNorm inputs whose variance is computed", 0, 65_504, [0, 10, 100, 1000, 10000]
    ),
    variance_std=number("their standard deviation", 0, 1000, 1.0, above=True),
    features=whole("features that each LayerNorm averages over", 2, 1_048_576, 1024),
)

SHOWN = Shown(tables=("cs336.autocast_dtypes", "cs336.layernorm_variance"))
