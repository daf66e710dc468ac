"""File formats in the Polaris homework: training time and size as in its table, and the time of each part."""
