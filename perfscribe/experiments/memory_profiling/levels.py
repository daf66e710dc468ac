"""Keys of experiments.memory_profiling with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import choices, devices, dtypes, experiment, isolation, lengths, sizes, whole

LEVELS = experiment(
    "Every allocation and free of one pass of that model: memory over its course, by kind and by line of code",
    isolation=isolation("job", gpu="cell"),
    device=devices(["cpu"], gpu=["cuda"]),
    size=sizes("model sizes, as in end_to_end", ["micro"], tiny=["nano"], gpu=["small", "2.7B"]),
    seq_len=lengths("sequence lengths, in tokens", [48, 96, 192], tiny=[12, 24], gpu=[128, 256, 512]),
    mode=choices(
        "inference: forward under no_grad | forward: with the graph kept | full_step: forward, backward, optimizer",
        ["inference", "forward", "full_step"],
    ),
    dtype=dtypes("bf16, fp16: autocast | tf32: fp32 with TF32 matrix products", ["fp32", "bf16"]),
    batch=whole("sequences in a batch", 1, 1_048_576, 4),
)

SHOWN = Shown(
    tables=(
        "cs336.memory_peaks",
        "cs336.memory_residual",
        "cs336.memory_largest",
        "cs336.memory_timelines",
    ),
    figures=("cs336.memory_timeline",),
)
