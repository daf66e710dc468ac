"""What stands under strategies' tables."""

from __future__ import annotations

from collections.abc import Iterable

from perfscribe.findings import counted
from perfscribe.records import Record

STATE = (
    "State: fp32 parameters, their gradients and AdamW's two moments on the rank that holds most, between backward and "
    "update; measured as the storages behind the rank's own shards, padding included, wherever they lie; predicted "
    "from the unwrapped model's parameters: each divided along its first dimension (FSDP1: each unit as a whole)."
)
SENT = (
    "Sent: bytes that each rank sends over a ring in a step, (n - 1)/n of what all gather or scatter among n ranks, "
    "twice that of an all-reduce; 1 MB is 10^6 bytes. Predicted from the plan: with P bytes gathered in fp32, 3P(n - "
    "1)/n for FULL_SHARD, 2P(n - 1)/n for SHARD_GRAD_OP and DDP, and for HYBRID_SHARD FULL_SHARD's of a group and an "
    "all-reduce of a rank's part among groups. FSDP gathers bf16 and fp16 in half the bytes, and FSDP1 what lies "
    "outside of the blocks once instead of twice. Seen: of every collective that the step called, as the dispatcher "
    "saw it. Flags below 64 bytes and groups of one rank are left out."
)
PEAK = (
    "Peaks: of torch's allocator over a whole step, on the rank with the highest; reserved is what the caching "
    "allocator took from the GPU. On a CPU they are bytes that torch's allocator handed out. What other plans hold is "
    "left out; held by others: what lay on the GPU right before the step and is of no plan that was there, which makes "
    "a peak too low if it goes within the step. Allocated peaks hold cuBLAS's workspaces."
)
STRATEGY_NOTES = (
    "Samples/s: batch times ranks over the median step by the host clock, the longest of any rank; all ranks begin "
    "together. Parameters, gradients and AdamW's state are fp32 whatever the dtype; fp16 uses a loss scaler, and "
    "FSDP reduces gradients of fp16 and bf16 products in the config's reduce_dtype, DDP in fp32. DDP has no CPU "
    "off-load.",
    PEAK,
    STATE,
    SENT,
)
MEMORY_NOTES = (
    STATE,
    "A unit is what is gathered together: a block, or all that lies outside of the blocks. Gathered in the last block: "
    "parameters that lie elsewhere than at rest while the last block of forward runs. Between: those left at the end "
    "of forward.",
)
WRAPPED_NOTES = (
    "Read off the wrapped model, not off the settings; a cell whose model is not what was asked for has failed. DDP "
    "and the model alone gather nothing; autocast computes their products in bf16 and fp16. The first loss was checked "
    "against that of the model before it was wrapped. Last loss: of the step beside it, which is an earlier one where "
    "fewer are timed, as with off-load; losses of unlike steps, or of unlike numbers of ranks, whose rows differ, do "
    "not compare. Collectives among several ranks, flags left out. "
    "The loss scale begins at 2^10 for fp16; a step that overflows is left out, and halves it.",
)
ONE_NOTES = (
    "One rank, so that every shard is the whole. FSDP1 turns to NO_SHARD by itself. FSDP2 keeps its strategy: it calls "
    "no collective, but copies each unit where a world of several would gather it. Off-load keeps state in the host's "
    "memory, which on a CPU is the same memory.",
)
WRAPPING_NOTES = (
    "FULL_SHARD; all variants take turns within one launch. FSDP2 gathers the next unit of forward by itself, and "
    "always the next one of backward; explicit: each unit asks for the next two. FSDP1 with one unit, backward_post "
    "and forward is what the workshop's settings came to, as a list of layers to wrap is read only together "
    "with auto_wrap.",
    "Step: the median over turns of each turn's median step, and the interquartile range of these; the ratio is that "
    "of two such medians, its interval by drawing turns again, the same of both. Samples/s: of that step.",
    "FSDP1 never frees its root between forward and backward, so that with one unit FULL_SHARD gathers once a step, as "
    "SHARD_GRAD_OP does.",
    PEAK,
    SENT,
)
COUNT_NOTES = ("By the formula of the model's shape, which a test compares with the model itself.",)
ACCUMULATION_NOTES = (
    "Norm of the gradients after two micro-batches, over all shards and ranks, against that of the model in one "
    "process, averaged over the ranks' batches: a ratio of 1 is right. FSDP1's off-load looks for an accelerator even "
    "where all else is on a CPU.",
)


def of_strategies(grid: Iterable[Record]) -> list[str]:
    """The notes of the strategies' table, with how large a step is: with larger ones strategies may rank otherwise."""
    names = ("model", "batch", "seq_len")
    sizes = dict.fromkeys(tuple(record.factors[name] for name in names) for record in grid)
    told = "; ".join(f"{counted(rows, 'row')} of {tokens} tokens ({model})" for model, rows, tokens in sizes)
    step = f"A rank's batch in a step: {told}. How strategies rank with larger steps was not measured."
    return [*([step] if sizes else []), *STRATEGY_NOTES]
