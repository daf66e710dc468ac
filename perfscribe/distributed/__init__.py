"""Training and collectives over several processes."""
