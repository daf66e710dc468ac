"""What was measured and where: journal, records, environment, checksums."""
