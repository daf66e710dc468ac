"""Counts without torch: parameters, FLOP, bytes, memory models and peak rates.

Nothing is re-exported here: an experiment imports only the modules that it needs, so that its fingerprint does not
depend on the others.
"""
