"""communication_nodes."""
