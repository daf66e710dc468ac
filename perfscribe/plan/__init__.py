"""What a run will measure and show: fingerprints, keys, plan files, cluster jobs."""
