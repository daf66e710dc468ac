"""Keys of experiments.attention with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import devices, dtypes, experiment, lengths, whole, wholes

LEVELS = experiment(
    "One attention operation without heads, forward and backward, time and memory",
    device=devices(["cpu"], gpu=["cuda"]),
    batch=whole("sequences in a batch", 1, 1_048_576, 8),
    head_dim=wholes("widths of a query, key or value vector", 1, 1024, [16, 32, 64, 128], tiny=[8, 16]),
    seq_len=lengths(
        "sequence lengths, in tokens", [64, 128, 256], tiny=[16, 32, 64], gpu=[256, 1024, 4096, 8192, 16384]
    ),
    dtype=dtypes("fp32 | tf32 | bf16 | fp16", ["fp32"]),
    warmup_passes=whole("passes before the timed ones, forward and backward each", 0, 10_000, 5, tiny=2, gpu=10),
    passes=whole("passes that are timed, forward and backward each", 1, 100_000, 20, tiny=5, gpu=100),
)

SHOWN = Shown(tables=("cs336.pytorch_attention", "cs336.attention_accounting"), figures=("cs336.attention_by_length",))
