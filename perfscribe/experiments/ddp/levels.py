"""Keys of experiments.ddp with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choices, dtypes, experiment, numbers, whole, wholes

LEVELS = experiment(
    "Training steps of the language model on several ranks, gradients averaged in several ways, interleaved",
    **shared.DIVIDED_BATCH
    # On 4 H200 half the IQR of a step is 0.5 ms at most with 32, 3 to 16 ms with 16.
    | {"batch": wholes("sequences in a batch, divided among the ranks", 1, 1_048_576, [4], gpu=[32])},
    dtype=dtypes("tf32: fp32 with TF32 matrix products, as published runs have it; bf16, fp16: autocast", ["fp32"]),
    implementation=choices(
        "naive, flat: after backward; overlap_…: during it; torch_ddp: PyTorch's DistributedDataParallel",
        ["naive", "flat", "overlap_individual", "overlap_bucketed", "torch_ddp"],
    ),
    bucket_mb=numbers(
        "sizes of overlap_bucketed's buckets, in MB of 10^6 bytes",
        0,
        1_000_000,
        [0.1, 1, 10],
        gpu=[1, 10, 100, 1000],
        above=True,
    ),
    turns=whole("turns of each implementation; an interval needs 6 or more", 1, 1000, 6, tiny=2),
    steps=whole("steps with communication, and without, that are timed in each turn", 1, 1000, 1),
    warmup_steps=whole("steps before them in each turn; PyTorch's implementation takes one more", 1, 1000, 1),
)

SHOWN = Shown(
    tables=(
        "cs336.ddp_check",
        "cs336.ddp_benchmark",
        "cs336.ddp_phases",
        "cs336.ddp_timeline",
        "cs336.ddp_overhead",
        "cs336.ddp_timeline_spans",
    ),
    figures=("cs336.ddp_timeline", "cs336.ddp_buckets"),
)
