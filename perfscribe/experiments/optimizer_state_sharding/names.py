"""The words of optimizer_state_sharding: what is compared, when memory is looked at, and what it consists of."""

from __future__ import annotations

UNSHARDED, SHARDED, PEER = "unsharded", "sharded", "zero_redundancy"
IMPLEMENTATIONS = (UNSHARDED, SHARDED, PEER)
AGAIN = "unsharded_again"  # the plain optimizer once more in each turn: how far equal things differ

# In the order of a step. Three are moments, at which what is allocated is counted; two are stretches between them, of
# which the peak is.
INIT, PASSES, BEFORE_STEP, STEP, AFTER_STEP = "init", "passes", "before_step", "step", "after_step"
MOMENTS = (INIT, PASSES, BEFORE_STEP, STEP, AFTER_STEP)

PARAMETERS, GRADIENTS, STATE = "parameters", "gradients", "optimizer state"
ACTIVATIONS, COMMUNICATION, OTHER = "activations and temporaries", "communication buffers", "tables, batch, workspaces"
KINDS = (PARAMETERS, GRADIENTS, STATE, ACTIVATIONS, COMMUNICATION, OTHER)
