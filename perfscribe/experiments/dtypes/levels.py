"""Keys of experiments.dtypes with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import devices, dtypes, experiment, whole, wholes

LEVELS = experiment(
    "The same training in fp32, fp16 and bf16, over target length and width",
    (("batch", "samples"), ("batch", "wide_samples")),
    device=devices(["cpu"], gpu=["cuda"]),
    d_model=wholes(
        "widths of the model, multiples of its 8 heads, and features of each position",
        8,
        65_536,
        [32, 64],
        tiny=[8, 16],
        gpu=[512, 2048, 4096],
        multiple=8,
    ),
    target_length=wholes("positions of a target sequence", 1, 65_536, [20, 50, 100], tiny=[4]),
    dtype=dtypes(
        "bf16, fp16: autocast; fp16 with a loss scaler | tf32: fp32 with TF32 matrix products", ["fp32", "fp16", "bf16"]
    ),
    samples=whole("samples in an epoch, for the narrowest model", 1, 10_000_000, 32, tiny=8, gpu=256),
    wide_samples=whole("samples in an epoch, for wider models", 1, 10_000_000, 32, tiny=8, gpu=96),
    batch=whole("samples in a batch", 1, 1_048_576, 16, tiny=4),
    epochs=whole("times that training goes through its samples", 2, 1000, 3, tiny=2),
    layers=whole("encoder layers of the model, and as many decoder layers", 1, 1000, 1, gpu=6),
    d_ff=whole("width of its feed-forward layers", 1, 1_048_576, 128, tiny=32, gpu=2048),
    source_length=whole("positions of a source sequence", 1, 65_536, 1),
)

SHOWN = Shown(tables=("polaris.dtypes",), figures=("polaris.dtypes_by_length",))
