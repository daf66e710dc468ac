"""Time of a training step: device work inside the program's ranges (CS336: nsys_profile)."""
