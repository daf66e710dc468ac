"""Reading samples from HDF5 by chunk shape, compression, and workers and threads of the loader."""
