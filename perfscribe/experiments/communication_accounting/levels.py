"""Keys of experiments.communication_accounting with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import choice, experiment, number, whole

LEVELS = experiment(
    "The pen-and-paper problem of a large model's memory and communication; nothing is timed",
    d_model=whole("width of the model", 1, 1_048_576, 16384),
    d_ff=whole("width between the two linear layers of a block", 1, 1_048_576, 53248),
    blocks=whole("blocks of two linear layers", 1, 65_536, 126),
    tokens=whole("tokens in a batch, which the homework leaves open", 1, 1_000_000_000_000, 131072),
    device_memory_gb=number(
        "memory of a device, in GB, where devices that hold everything are counted", 0, 1_000_000, 80, above=True
    ),
    fsdp_memory_gb=number(
        "memory of a device, in GB, where state and activations are divided among devices", 0, 1_000_000, 95, above=True
    ),
    gb_bytes=choice(
        "bytes of a GB of these two memories: 2^30, or 10^9 = 1000000000", [1073741824, 1000000000], 1073741824
    ),
    sharded_activations=number("share of the activations that is divided among devices", 0, 1, 0.5),
    bandwidth_bytes_per_s=number(
        "bandwidth of a mesh axis, both directions together", 0, 1_000_000_000_000_000, 180000000000, above=True
    ),
    flop_per_s=number("rate of a device", 0, 1_000_000_000_000_000_000, 460000000000000, above=True),
    fsdp_devices=whole("devices along the dimension of FSDP", 1, 1_048_576, 16),
    tensor_devices=whole("devices along the dimension of tensor parallelism", 1, 1_048_576, 4),
    fsdp_axes=whole("mesh axes given to FSDP", 1, 16, 2),
    tensor_axes=whole("mesh axes given to tensor parallelism", 1, 16, 1),
)

SHOWN = Shown(
    tables=(
        "cs336.communication_inputs",
        "cs336.communication_memory",
        "cs336.communication_sharded",
        "cs336.communication_bound",
        "cs336.communication_remedies",
    )
)
