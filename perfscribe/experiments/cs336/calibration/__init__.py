"""Short experiments that tell the machine's ceilings: products, memory, links, transfers to the device, disk."""
