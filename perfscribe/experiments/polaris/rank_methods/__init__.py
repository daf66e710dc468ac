"""Ways to find rank, world size and local rank, under several launchers and placements; CPU binding."""
