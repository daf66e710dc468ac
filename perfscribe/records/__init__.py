"""Results and where they were measured: journal, records, environment, checksums."""
