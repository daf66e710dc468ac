"""Communication between real nodes of a cluster, next to its stand-in on one machine."""
