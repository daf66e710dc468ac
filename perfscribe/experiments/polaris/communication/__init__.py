"""Communication of data-parallel training within a node and across nodes, as the Polaris homework asks for it."""
