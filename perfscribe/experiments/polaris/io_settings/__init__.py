"""What decides how long a sample takes from HDF5: chunk shape, compression, workers and threads of the loader."""
