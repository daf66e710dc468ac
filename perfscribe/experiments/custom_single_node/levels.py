"""What custom_single_node shows."""

from perfscribe.base.registry import Shown

SHOWN = Shown(
    tables=(
        "fsdp.custom_single_node",
        "fsdp.custom_single_node_losses",
        "fsdp.custom_single_node_answers",
        "fsdp.custom_shapes",
    ),
    figures=("fsdp.custom_single_node_losses",),
    reads=("baseline",),
)
