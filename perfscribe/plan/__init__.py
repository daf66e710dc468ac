"""Plans what a run measures and shows: fingerprints, cell keys, plan files, cluster jobs."""
