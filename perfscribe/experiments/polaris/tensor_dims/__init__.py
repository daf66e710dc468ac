"""The Polaris homework on larger tensors: width, dtype and number of samples varied separately."""
