"""Keys of experiments.communication with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import choice, choices, experiment, whole

LEVELS = experiment(
    "The Polaris homework's training on two ranks of a node against a rank on each of two nodes, profiled, interleaved",
    backend=choices("gloo: processes on the CPU | nccl: a GPU for each", ["gloo", "nccl"], ["gloo"], gpu=["nccl"]),
    implementation=choices(
        "torch_ddp: PyTorch's DistributedDataParallel | ours: naive, flat, overlap_individual",
        ["naive", "flat", "overlap_individual", "torch_ddp"],
        ["torch_ddp"],
    ),
    tool=choices(
        "what traces the ranks: torch_profiler | nsys, which must be on this machine, and sees NCCL alone",
        ["torch_profiler", "nsys"],
        ["torch_profiler", "nsys"],
        tiny=["torch_profiler"],
    ),
    features=whole(
        "features of each position and width of the model, a multiple of its 8 heads",
        8,
        65_536,
        64,
        gpu=512,
        multiple=8,
    ),
    layers=whole("encoder layers of the model, and as many decoder layers", 1, 1000, 1, gpu=6),
    d_ff=whole("width of its feed-forward layers", 1, 1_048_576, 128, tiny=64, gpu=2048),
    batch=whole("samples in a batch of each rank", 1, 1_048_576, 8, tiny=4, gpu=32),
    source_length=whole("positions of a source sequence", 1, 65_536, 1),
    target_length=whole("positions of a target sequence", 1, 65_536, 20),
    dtype=choice("fp32 | tf32: fp32 with TF32 matrix products", ["fp32", "tf32"], "fp32"),
    wait=whole("steps before a profile, of which the profiler takes no notice", 1, 1000, 1),
    warmup_steps=whole("steps that it traces and forgets", 1, 1000, 1),
    active=whole("steps that it keeps", 1, 1000, 2),
    turns=whole("profiles of each placement; an interval needs 6 or more", 1, 1000, 6, tiny=2),
    samples=whole("samples of an epoch", 1, 1_073_741_824, 64, tiny=32, gpu=2048),
    epochs=whole("times that a training goes through them", 1, 100_000, 1, gpu=2),
    trainings=whole("trainings of each kind", 1, 1000, 3, tiny=1, gpu=1),
)

SHOWN = Shown(
    reads=("all_reduce",),
    tables=(
        "polaris.communication",
        "polaris.communication_ranks",
        "polaris.communication_bandwidth",
        "polaris.communication_trainings",
    ),
    figures=("polaris.communication_wait",),
)
