"""Keys of experiments.end_to_end with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import devices, dtypes, experiment, section, whole

LEVELS = experiment(
    "Forward, backward and optimizer step of a whole language model",
    device=devices(["cpu"], gpu=["cuda"]),
    **shared.language_model("model sizes; nano, micro and mini are for machines without a GPU"),
    warmup_steps=whole("steps before the timed ones", 0, 10_000, 5),
    timed_steps=whole("steps that are timed", 1, 100_000, 10),
    single_length=section(
        "further cells, at one sequence length only",
        seq_len=whole("that length, in tokens", 1, 1_048_576, 128, tiny=32, gpu=512),
        dtype=dtypes(
            "further dtypes, for every size", ["bf16"], tiny=["bf16", "fp16"], gpu=["tf32", "bf16", "fp16"], empty=True
        ),
    ),
)

SHOWN = Shown(
    tables=("cs336.benchmarking_script", "cs336.benchmarking_rates", "cs336.mixed_precision_passes"),
    figures=("cs336.mixed_precision_speedup",),
    references=("mixed_precision",),
)
