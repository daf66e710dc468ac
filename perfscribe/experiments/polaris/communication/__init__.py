"""Communication of data-parallel training within a node and across nodes (Polaris homework)."""
