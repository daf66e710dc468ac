"""Keys of experiments.checkpoints with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choice, experiment, pairs, whole

LEVELS = experiment(
    "A training divided by FSDP that is saved in parts, and resumed by another number of ranks",
    backend=shared.BACKEND,
    ranks=pairs(
        "pairs of numbers of ranks: the first trains and saves, the second resumes", 1, 1024, [[1, 2], [2, 1], [2, 4]]
    ),
    trainer_ranks=pairs(
        "the same pairs for Trainer's own checkpoints, which it divides on GPUs alone",
        1,
        1024,
        [[2, 2]],
        gpu=[[2, 2], [2, 4], [4, 2]],
        empty=True,
    ),
    rows_per_step=whole("rows of all ranks in an optimizer step, a multiple of every number of ranks", 1, 65_536, 4),
    save_steps=whole("optimizer steps from one checkpoint to the next", 1, 100_000, 3),
    keep_checkpoints=whole("checkpoints that are kept", 1, 1000, 1),
    model_name=shared.BLOOM,
    labels=shared.LABELS,
    train_size=whole("rows to train on", 1, 1_000_000, 32, tiny=20),
    eval_size=whole("rows to take the evaluation loss of, at the end", 1, 1_000_000, 8, tiny=4, gpu=16),
    **shared.LENGTHS,
    vocab_size=shared.BLOOM_VOCABULARY,
    num_epochs=whole("times that training goes through its rows", 1, 1000, 1),
    batch_size=shared.BATCH_SIZE,
    **shared.ADAMW,
    dtype=choice("fp32 | fp16, bf16: mixed precision", ["fp32", "fp16", "bf16"], "fp32"),
)

SHOWN = Shown(tables=("fsdp.checkpoints",))
