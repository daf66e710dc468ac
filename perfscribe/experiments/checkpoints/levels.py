"""Keys of experiments.checkpoints with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import choice, choices, experiment, number, pairs, whole

LEVELS = experiment(
    "A training divided by FSDP that is saved in parts, and resumed by another number of ranks",
    backend=choices("gloo: processes on the CPU | nccl: a GPU for each", ["gloo", "nccl"], ["gloo"], gpu=["nccl"]),
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
    model_name=choice(
        "bloom-tiny and bloom-micro are for machines without a GPU",
        ["bigscience/bloom-560m", "bloom-micro", "bloom-tiny"],
        "bloom-micro",
        tiny="bloom-tiny",
        gpu="bigscience/bloom-560m",
    ),
    labels=choice(
        "answer | source, source_prompt: the workshop's own, which train something else",
        ["answer", "source", "source_prompt"],
        "answer",
    ),
    train_size=whole("rows to train on", 1, 1_000_000, 32, tiny=20),
    eval_size=whole("rows to take the evaluation loss of, at the end", 1, 1_000_000, 8, tiny=4, gpu=16),
    max_length=whole("tokens of a row", 16, 65_536, 64, gpu=512),
    new_tokens=whole("tokens that the data set leaves room for in prompts to generate from", 1, 65_536, 8, gpu=50),
    vocab_size=whole(
        "entries that a tokenizer is trained to, where the model brings none",
        258,
        10_000_000,
        2000,
        tiny=512,
        gpu=50000,
    ),
    num_epochs=whole("times that training goes through its rows", 1, 1000, 1),
    batch_size=whole("rows of each rank at once", 1, 65_536, 1),
    learning_rate=number("of AdamW, at its first step; falls to 0 in a line", 0, 1, 5e-05, above=True),
    weight_decay=number("of AdamW", 0, 1, 0.01),
    dtype=choice("fp32 | fp16, bf16: mixed precision", ["fp32", "fp16", "bf16"], "fp32"),
)

SHOWN = Shown(tables=("fsdp.checkpoints",))
