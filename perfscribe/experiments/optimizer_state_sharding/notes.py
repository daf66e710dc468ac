"""What stands below optimizer_state_sharding's tables."""

from __future__ import annotations

from perfscribe.counters.sharding import GLOO_CHUNK_BYTES
from perfscribe.parallel.partition import PIECE_BYTES
from perfscribe.tables import MIB

MEMORY_NOTES = [
    "Bytes that torch's allocator has handed out for tensors, on the rank that holds most, in a step after the first "
    "ones, when optimizer state exists already and gradients do not. The step is the optimizer's. Batch: of all "
    "processes together. Beyond the allocator: CUDA's context and NCCL's buffers.",
]
KIND_NOTES = [
    "Of the rank that holds most. Parameters, gradients and optimizer state: sizes of these tensors. Activations and "
    "temporaries: all else that comes and goes, at the peak of the step AdamW's temporaries. Communication buffers: "
    "what averaging and the exchange of parameters add where they have the peak; NCCL's own are not in it. A gradient "
    "that backward has not handed over yet counts as an activation.",
]
PREDICTION_NOTES = [
    "Predicted by counting the tensors that our implementation holds (perfscribe/counters/sharding.py). Error: of the "
    "prediction, in percent of what was measured. Largest difference: the kind in which the two differ most, measured "
    "minus predicted.",
]
SAVED_NOTES = [
    "What the plain optimizer holds more, on the ranks that hold most. Sharding divides AdamW's two moments; at the "
    "peak of the step AdamW's temporaries are fewer too, as each rank updates a part of the parameters.",
]
TIME_NOTES = [
    "Host clock; ranks start each call together, and its time is the longest of any rank. Step: forward, backward, "
    "averaging of gradients and optimizer, with no wait between them. Optimizer: its step alone, on gradients that are "
    "there. Update and exchange: our optimizer's two parts with a wait after each, which with NCCL otherwise overlap: "
    f"while a piece of at most {PIECE_BYTES // MIB} MiB a rank travels, the next is updated. Gloo sends flat copies of "
    f"at most {GLOO_CHUNK_BYTES // MIB} MiB a rank. Off by: largest relative difference of a parameter from the plain "
    "optimizer's after ten steps on the same gradients, checked before anything is timed.",
]
SPEED_NOTES = [
    "Times of plain and sharded optimizers come from the same turns, on the same model and gradients. The ratio is "
    "that of the medians over turns, a turn standing there by its own median: the medians over all calls, in the table "
    "above, may lie otherwise. The interval is a bootstrap over turns; below one means that sharding takes less time. "
    "A verdict needs an interval without 1, and a difference larger than that of the unsharded optimizer against "
    "itself, which takes a second turn.",
]
SCHEME_NOTES = [
    "Arithmetic in fp32. Sent: by each rank in a step, on average over ranks, where collectives go round a ring: the "
    "bytes times (n - 1)/n for a reduce-scatter, an all-gather, or broadcasts of parts, twice that for an all-reduce. "
    "Messages: a tensor each, as the handout has them, or one for all in ZeRO, which works on the flattened model; on "
    "NCCL ours sends updated parameters by an all-gather a piece instead. Counted: bytes of gradients that a rank "
    "handed to its all-reduces in one measured step; predicted are the bytes of all weights.",
]
PUBLISHED_NOTES = [
    "A published figure stands beside ours where all levels that its source states are the same. brandon-snider prints "
    "the peak of the stretch before each moment, damek and kesavanramakrishnan what is allocated at the moment; ours "
    "follows the source.",
]
