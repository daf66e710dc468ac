"""Keys of experiments.calibration with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import alone, choices, devices, dtypes, experiment, section, timeout, whole, wholes

LEVELS = experiment(
    "Ceilings of the machine: products, memory, links between GPUs, host to device, disk",
    timeout_s=timeout(60, gpu=600),
    alone=alone("which would use the same memory, links and disk"),
    device=devices(["cpu"], gpu=["cuda"]),
    samples=whole("samples of each cell; of long products fewer, but at least 3", 1, 1000, 5, tiny=3, gpu=10),
    product=section(
        "square products of random matrices",
        matrix_size=wholes("rows and columns", 16, 65_536, [512, 1024, 2048], tiny=[128, 256], gpu=[4096, 8192, 16384]),
        dtype=dtypes("fp32 | tf32 | bf16 | fp16", ["fp32", "bf16"], gpu=["fp32", "tf32", "bf16", "fp16"]),
    ),
    memory=section(
        "within a device's memory",
        operation=choices("triad: a = b + s c", ["copy", "triad"]),
        size_mib=wholes(
            "of a tensor; the largest is the ceiling", 1, 1_048_576, [16, 256], tiny=[1, 16], gpu=[256, 1024, 4096]
        ),
    ),
    link=section(
        "from each GPU to each other one",
        gpus=whole("of so many GPUs; pairs that the machine does not have are skipped", 2, 16, 4),
        size_mib=wholes("sizes of the copy", 1, 1_048_576, [1024]),
    ),
    transfer=section(
        "between the host's memory and the device",
        operation=choices("directions", ["host to device", "device to host"]),
        host_memory=choices("how the host's memory is held", ["pinned", "pageable"]),
        size_mib=wholes("sizes of the copy", 1, 65_536, [256]),
    ),
    disk=section(
        "a file on the disk that holds the results; it is removed",
        operation=choices("write: with fsync; cold read: dropped from the page cache before", ["write", "cold read"]),
        size_mib=wholes("sizes of the file", 1, 65_536, [64], tiny=[8], gpu=[512]),
        samples=whole("times that it is written, or read", 1, 1000, 3),
    ),
)

# The roofline shows what the experiments that it reads have measured.
SHOWN = Shown(
    tables=("cs336.ceilings_products", "cs336.ceilings_bandwidths", "cs336.roofline"),
    reads=("attention", "end_to_end", "flash_benchmarking"),
)
