"""Keys of experiments.torch_compile with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import (
    choices,
    devices,
    dtypes,
    experiment,
    isolation,
    lengths,
    section,
    sizes,
    timeout,
    whole,
    wholes,
)

LEVELS = experiment(
    "Attention and training steps, eager and compiled, interleaved",
    isolation=isolation("job", gpu="cell"),
    timeout_s=timeout(1200),
    device=devices(["cpu"], gpu=["cuda"]),
    turns=whole("turns of eager and compiled; an interval needs 6 or more", 1, 1000, 6, gpu=8),
    attention=section(
        "the attention grid of `attention`",
        backend=choices(
            "inductor: needs a compiler | aot_eager: the compiler's graphs, run by PyTorch's own kernels",
            ["inductor", "aot_eager"],
            ["aot_eager", "inductor"],
            tiny=["aot_eager"],
            gpu=["inductor"],
        ),
        dtype=dtypes("fp32 | tf32 | bf16 | fp16", ["fp32"]),
        head_dim=wholes("widths of a query, key or value vector", 1, 1024, [64], tiny=[8], gpu=[16, 32, 64, 128]),
        seq_len=lengths(
            "sequence lengths, in tokens", [64, 128, 256], tiny=[16, 32, 64], gpu=[256, 1024, 4096, 8192, 16384]
        ),
        batch=whole("sequences in a batch", 1, 1_048_576, 8),
        passes=whole(
            "passes timed in each turn, forward and backward each; at least 3, and fewer where they last 0.1 s",
            1,
            10_000,
            5,
            tiny=2,
            gpu=13,
        ),
    ),
    model=section(
        "full training steps of the models of end_to_end",
        backend=choices("inductor | aot_eager, as above", ["inductor", "aot_eager"], ["aot_eager"], gpu=["inductor"]),
        dtype=dtypes("fp32 | tf32 | bf16 | fp16", ["fp32"]),
        size=sizes(
            "model sizes; nano, micro and mini are for machines without a GPU",
            ["nano"],
            gpu=["small", "medium", "large", "xl", "2.7B"],
        ),
        seq_len=lengths("sequence lengths, in tokens", [32, 64, 128], tiny=[16, 32, 64], gpu=[512]),
        batch=whole("sequences in a batch", 1, 1_048_576, 4),
        passes=whole("steps that are timed in each turn", 1, 10_000, 2, tiny=1),
    ),
)

SHOWN = Shown(
    tables=(
        "cs336.compiled_attention",
        "cs336.compiled_attention_speedup",
        "cs336.compiled_models",
        "cs336.compiled_models_speedup",
        "cs336.compile_cost",
    ),
    figures=("cs336.compiled_speedups",),
)
