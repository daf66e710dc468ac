"""Keys of experiments.io_formats with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import alone, choices, devices, experiment, whole

LEVELS = experiment(
    "Training from, and reading of, one data set in several file formats",
    (
        ("batch", "samples"),
        ("training_samples", "samples"),
        ("batch", "training_samples"),
        ("read_samples", "samples"),
    ),
    alone=alone("which would share disk and page cache"),
    device=devices(["cpu"], gpu=["cuda"]),
    format=choices(
        "memory: the arrays themselves, without a file",
        ["memory", "hdf5_gzip", "hdf5", "pt", "npz_compressed", "npz", "npy"],
    ),
    samples=whole("samples in the data set", 1, 10_000_000, 256, tiny=64, gpu=2048),
    source_length=whole("positions of a source sequence", 1, 65_536, 1),
    target_length=whole("positions of a target sequence", 1, 65_536, 20),
    features=whole(
        "features of each position and width of the model, a multiple of its 8 heads",
        8,
        65_536,
        512,
        tiny=64,
        multiple=8,
    ),
    batch=whole("samples in a batch", 1, 1_048_576, 32),
    epochs=whole("times that training goes through its samples", 1, 1000, 1, gpu=5),
    training_samples=whole(
        "samples that training uses; null: all. The homework's four ranks had a quarter each",
        1,
        10_000_000,
        128,
        tiny=64,
        gpu=512,
        optional=True,
    ),
    layers=whole("encoder layers of the model, and as many decoder layers", 1, 1000, 1, gpu=6),
    d_ff=whole("width of its feed-forward layers", 1, 1_048_576, 512, tiny=64, gpu=2048),
    read_samples=whole("single samples that are read in random order", 1, 10_000_000, 32, tiny=8, gpu=512),
    cache=choices("page cache before reading; cold where the kernel lets a process drop its pages", ["warm", "cold"]),
)

SHOWN = Shown(tables=("polaris.io_formats", "polaris.io_parts", "polaris.io_reads"), figures=("polaris.io_times",))
