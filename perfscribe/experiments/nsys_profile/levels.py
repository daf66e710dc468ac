"""Keys of experiments.nsys_profile with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import devices, experiment, lengths, section, sizes, whole

LEVELS = experiment(
    "Kernels and ranges of that model's inference and training steps, by Nsight Systems or torch's profiler",
    device=devices(["cpu"], gpu=["cuda"]),
    **shared.language_model("model sizes, as in end_to_end"),
    warmup_steps=whole("passes before the timed and before the traced ones", 1, 10_000, 2, gpu=3),
    timed_steps=whole("passes that are timed without a profiler", 1, 100_000, 5, gpu=10),
    traced_steps=whole("passes that are traced", 1, 1000, 3),
    detailed=section(
        "which cells keep every kernel",
        size=sizes("those of these sizes", ["micro"], tiny=["nano"], gpu=["small"], empty=True),
        seq_len=lengths("and of these sequence lengths, in tokens", [64, 128], tiny=[64], gpu=[128], empty=True),
    ),
)

SHOWN = Shown(
    tables=(
        "cs336.nsys_forward",
        "cs336.nsys_top_kernels",
        "cs336.nsys_attention",
        "cs336.nsys_families",
        "cs336.nsys_nvtx_kernels",
    ),
    figures=("cs336.nsys_forward",),
)
