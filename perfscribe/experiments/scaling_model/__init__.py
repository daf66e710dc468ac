"""Training steps and collectives over ranks, by terms that other experiments measured apart, up to 1,024 ranks."""
