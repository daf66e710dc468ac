"""Keys of experiments.warmup with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import alone, devices, dtypes, experiment, isolation, lengths, sizes, whole, wholes

LEVELS = experiment(
    "Full training steps of that model after few warm-up steps or none",
    isolation=isolation("cell"),
    alone=alone("which would share the driver, which loads kernels"),
    device=devices(["cpu"], gpu=["cuda"]),
    size=sizes("model sizes, as in end_to_end", ["nano"], gpu=["small", "medium", "large", "xl", "2.7B"]),
    seq_len=lengths("sequence lengths, in tokens", [128], tiny=[32], gpu=[512]),
    dtype=dtypes("tf32: fp32 with TF32 matrix products; bf16, fp16: autocast", ["fp32"]),
    batch=whole("sequences in a batch", 1, 1_048_576, 4),
    warmup_steps=wholes("numbers of steps before the timed ones", 0, 10_000, [0, 1, 2, 5]),
    timed_steps=whole("steps that are timed", 1, 100_000, 10),
)

SHOWN = Shown(
    tables=("cs336.benchmarking_warmup", "cs336.benchmarking_steps"),
    figures=("cs336.benchmarking_steps",),
    references=("end_to_end",),
)
