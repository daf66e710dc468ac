"""CS336's problem distributed_communication_single_node: all-reduce and the other collectives between processes."""
