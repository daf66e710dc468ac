"""What scaling_model shows."""

from perfscribe.base.registry import Shown

SHOWN = Shown(
    tables=("fsdp.scaling_predicted",),
    figures=("fsdp.scaling",),
    reads=("all_reduce",),
    reads_if_measured=("custom_multi_gpu", "ddp", "multi_gpu", "weak_scaling", "communication_nodes"),
)
