"""What everything else uses: cells and measurements, atomic files, one-line errors, the registry of experiments."""
