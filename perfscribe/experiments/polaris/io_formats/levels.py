"""Keys of experiments.io_formats with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config.keys import alone, choices, constant, devices, experiment, whole
from perfscribe.data.layout import file_names

LEVELS = experiment(
    "Training from, and reading of, one data set in several file formats",
    (("batch", "samples"), ("training_samples", "samples"), ("batch", "training_samples"), ("read_samples", "samples")),
    alone=alone("which would share disk and page cache"),
    device=devices(["cpu"], gpu=["cuda"]),
    format=choices(
        "memory: the arrays themselves, without a file; hdf5_gzip_samples: each sample is a chunk of its own",
        ["memory", "hdf5_gzip", "hdf5_gzip_samples", "hdf5", "pt", "npz_compressed", "npz", "npy"],
    ),
    samples=whole("samples in the data set", 1, 10_000_000, 256, tiny=64, gpu=2048),
    source_length=constant(1),
    target_length=constant(20),
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
    layers=constant(1, gpu=6),
    d_ff=constant(512, tiny=64, gpu=2048),
    read_samples=whole("single samples that are read in random order", 1, 10_000_000, 32, tiny=8, gpu=512),
    cache=choices("page cache before reading; cold where the kernel lets a process drop its pages", ["warm", "cold"]),
)

SHOWN = Shown(tables=("polaris.io_formats", "polaris.io_parts", "polaris.io_reads"), figures=("polaris.io_times",))

SHAPE = ("samples", "source_length", "target_length", "features")
SETTINGS = ("batch", "epochs", "layers", "d_ff", "features", *SHAPE[:3], "read_samples")


def dataset_name(config: Mapping[str, Any]) -> str:
    """Return the data set's name, which contains its shape so that two presets never share a folder."""
    return "polaris_io_{samples}x{source_length}x{target_length}x{features}".format(**config)


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the data sets to generate first, by name: parameters, formats, and files relative to its folder."""
    formats = [name for name in config["format"] if name != "memory"]
    parameters = {name: config[name] for name in (*SHAPE, "seed")}
    return {dataset_name(config): {"parameters": parameters, "formats": formats, "files": file_names(formats)}}


def _requirements(factors: Mapping[str, Any]) -> tuple[str, ...]:
    requirements = {
        "cuda": factors["device"] == "cuda",
        "hdf5": factors["format"].startswith("hdf5"),
        "posix_fadvise": factors["cache"] == "cold",
    }
    return tuple(name for name, needed in requirements.items() if needed)


def _cost_bytes(factors: Mapping[str, Any]) -> float:
    """Return roughly the bytes decoded, read or copied; precise enough to order cells."""
    sample_bytes: int = 4 * factors["features"] * (factors["source_length"] + factors["target_length"])
    whole_bytes: int = factors["samples"] * sample_bytes
    per_sample_reads = factors["epochs"] * factors["training_samples"] + factors["read_samples"]
    cost: float = whole_bytes + per_sample_reads * sample_bytes
    if factors["format"] == "hdf5_gzip":
        # h5py guesses chunks of about 128 samples and inflates a whole chunk for each sample.
        cost += per_sample_reads * 128 * sample_bytes
    if factors["format"] == "npz_compressed":
        cost += 8 * whole_bytes
    return cost * (2 if factors["cache"] == "cold" else 1)


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return one cell per device, format and cache; the format memory has no file that could be cold."""
    training_samples = min(config["training_samples"] or config["samples"], config["samples"])
    settings = {name: config[name] for name in SETTINGS} | {"training_samples": training_samples}
    result = []
    for levels in grid({name: config[name] for name in ("device", "format", "cache")}):
        if levels["format"] == "memory" and levels["cache"] == "cold":
            continue
        factors = {**levels, **settings}
        if levels["cache"] == "cold":
            factors["epochs"] = 1  # from the second epoch on the files are warm
        result.append(
            Cell(factors, requires=_requirements(factors), cost=_cost_bytes(factors), data=(dataset_name(config),))
        )
    return result
