"""The Polaris homework on one device: total and per-epoch time, throughput, memory."""
