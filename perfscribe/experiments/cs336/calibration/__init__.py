"""Short experiments that measure the machine's ceilings: products, memory, links, transfers to the device, disk."""
