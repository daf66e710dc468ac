"""Keys of experiments.flash_benchmarking with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import choice, choices, devices, dtypes, experiment, lengths, section, whole, wholes

SDPA = ["sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math"]
IMPLEMENTATIONS = ["eager", "compiled", "tiled", "triton", *SDPA, "flex"]

# A user who sets these asks for no further ones.
FOLLOWS = ("seq_len", "head_dim")

LEVELS = experiment(
    "Causal attention by every implementation at hand, forward, backward and both, over length and head dimension",
    device=devices(["cpu"], gpu=["cuda"]),
    implementation=choices(
        "eager, compiled; tiled, triton: ours; sdpa_…: backends of scaled_dot_product_attention; flex: FlexAttention",
        IMPLEMENTATIONS,
        ["eager", "tiled", "sdpa_flash", "sdpa_math", "triton"],
        tiny=["eager", "tiled", "sdpa_flash", "triton"],
        gpu=["eager", "triton"],
    ),
    seq_len=lengths(
        "sequence lengths, in tokens",
        [128, 256, 512],
        tiny=[32, 64, 128],
        gpu=[128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536],
    ),
    head_dim=wholes("widths of a query, key or value vector", 1, 1024, [32, 64], tiny=[16, 32], gpu=[16, 32, 64, 128]),
    dtype=choices(
        "fp32 | bf16 | fp16, of the tensors themselves", ["fp32", "bf16", "fp16"], ["fp32", "bf16"], tiny=["fp32"]
    ),
    batch=whole("sequences in a batch", 1, 1_048_576, 1),
    samples=whole(
        "samples of each pass; fewer, but at least 3, where they would last longer than a tenth of a second",
        1,
        1000,
        5,
        gpu=10,
    ),
    sub_grid=section(
        "further implementations that are too costly, or too slow to compile, for every problem",
        FOLLOWS,
        implementation=choices(
            "which; as above",
            IMPLEMENTATIONS,
            [],
            gpu=["compiled", "flex", "sdpa_flash", "sdpa_cudnn"],
            empty=True,
        ),
        seq_len=lengths("sequence lengths, in tokens; seq_len above where that is set", [1024, 4096, 16384, 65536]),
        head_dim=wholes("widths of a vector; head_dim above where that is set", 1, 1024, [64, 128]),
        dtype=choices("fp32 | bf16 | fp16", ["fp32", "bf16", "fp16"], ["bf16"]),
    ),
    tf32=section(
        "further cells in fp32 with TF32 products",
        FOLLOWS,
        implementation=choices(
            "of these implementations", ["eager", "triton"], [], gpu=["eager", "triton"], empty=True
        ),
        seq_len=lengths("sequence lengths, in tokens; seq_len above where that is set", [1024, 4096, 16384, 65536]),
        head_dim=wholes("widths of a vector; head_dim above where that is set", 1, 1024, [64, 128]),
    ),
    ieee=section(
        "further cells in fp32 with products by fp32 multiply-adds, where those of dtype fp32 are three TF32 products",
        FOLLOWS,
        implementation=choices("of these implementations", ["triton_ieee"], [], gpu=["triton_ieee"], empty=True),
        seq_len=lengths("sequence lengths, in tokens; seq_len above where that is set", [1024, 4096, 16384]),
        head_dim=wholes("widths of a vector; head_dim above where that is set", 1, 1024, [64, 128]),
    ),
    leaderboard=section(
        "the problem of the course's leaderboard",
        implementation=choices(
            "who is to solve it",
            IMPLEMENTATIONS,
            ["eager", "tiled", "sdpa_flash", "sdpa_math"],
            tiny=["eager", "tiled", "sdpa_flash"],
            gpu=["eager", "triton", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "flex"],
        ),
        heads=whole("attention heads", 1, 1024, 4, tiny=2, gpu=16),
        seq_len=whole("sequence length, in tokens", 1, 1_048_576, 256, tiny=64, gpu=16384),
        head_dim=whole("width of a query, key or value vector", 1, 1024, 64, tiny=16),
        dtype=choice("fp32 | tf32 | bf16 | fp16", ["fp32", "tf32", "bf16", "fp16"], "bf16", tiny="fp32"),
    ),
    matmul=section(
        "square products whose rate is the ceiling",
        matrix_size=wholes("rows and columns", 16, 65_536, [256, 512, 1024], tiny=[64, 128, 256], gpu=[8192]),
        dtype=dtypes(
            "fp32 | tf32 | bf16 | fp16", ["fp32", "bf16"], tiny=["fp32"], gpu=["fp32", "tf32", "bf16", "fp16"]
        ),
    ),
)

SHOWN = Shown(
    tables=("cs336.flash_leaderboard", "cs336.flash_cells"),
    figures=("cs336.flash_times",),
)
