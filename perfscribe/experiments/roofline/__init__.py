"""Attention and training steps of other experiments against the roofline of the machine; measures nothing itself."""
