"""Keys of experiments.io_settings with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import choices, experiment, whole, wholes

LEVELS = experiment(
    "One data set in HDF5 files of several chunk shapes, with and without gzip, read by several workers and threads",
    (
        ("batch", "epoch_samples"),
        ("epoch_samples", "samples"),
        ("read_samples", "samples"),
        ("whole_chunk_samples", "samples"),
    ),
    chunk=choices(
        "samples in a chunk; whole: all of them, guess: chunks of the shape that h5py chooses, contiguous: no chunks",
        ["contiguous", 1, 32, "whole", "guess"],
    ),
    compression=choices("gzip: at h5py's default level", ["none", "gzip"]),
    workers=wholes("worker processes of the loader; 0: the process itself reads", 0, 64, [0, 2], gpu=[0, 2, 4]),
    threads=wholes("threads that read the samples of a batch", 1, 64, [1, 2], gpu=[1, 4]),
    samples=whole("samples in the data set", 1, 10_000_000, 128, tiny=64, gpu=2048),
    source_length=whole("positions of a source sequence", 1, 65_536, 1),
    target_length=whole("positions of a target sequence", 1, 65_536, 20),
    features=whole("features of each position", 1, 65_536, 512, tiny=64),
    batch=whole("samples in a batch", 1, 1_048_576, 4, gpu=32),
    epochs=whole("timed epochs, after one whose samples are checked", 1, 1000, 3, tiny=2, gpu=2),
    epoch_samples=whole("samples in an epoch", 1, 10_000_000, 16, gpu=128),
    read_samples=whole("single samples that are read in random order", 1, 10_000_000, 16, tiny=8, gpu=64),
    whole_chunk_samples=whole("both, where a chunk holds the whole data set", 1, 10_000_000, 4),
    chunk_cache_kib=whole(
        "KiB of inflated chunks that the library keeps of an array: 1024 is the default of HDF5 before version 2",
        0,
        1_048_576,
        0,
        gpu=1024,
    ),
)

SHOWN = Shown(tables=("polaris.io_chunks", "polaris.io_loader"))
