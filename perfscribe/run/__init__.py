"""Execution of a run: session, progress, worker, child, monitor, leases, self-test gate."""
