"""Where a training step's time goes: device work inside the program's ranges (CS336: nsys_profile)."""
