"""Keys of experiments.weak_scaling with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import choice, choices, experiment, number, whole, wholes

LEVELS = experiment(
    "The workshop's weak scaling, and two variants of it whose work a GPU stays the same",
    backend=choices("gloo: processes on the CPU | nccl: a GPU for each", ["gloo", "nccl"], ["gloo"], gpu=["nccl"]),
    world_size=wholes("ranks, in the order of layers and batch", 1, 1024, [1, 2], gpu=[2, 4, 8, 16]),
    ranks_per_node=whole("ranks on a node at most; more are on several nodes of a cluster's job", 1, 1024, 8),
    layers=wholes("layers of the model at each number of ranks", 1, 1000, [1, 2], gpu=[3, 6, 12, 24], repeats=True),
    batch=wholes(
        "rows of each rank at once, at each number of ranks",
        1,
        65_536,
        [4, 2],
        tiny=[2, 1],
        gpu=[8, 4, 2, 1],
        repeats=True,
    ),
    hidden_size=whole("width of the model", 1, 65_536, 64, tiny=32, gpu=2048),
    num_heads=whole("attention heads", 1, 1024, 4, tiny=2, gpu=16),
    ffn=whole("width of its feed-forward layers", 1, 1_048_576, 128, tiny=64, gpu=8192),
    loop=choice(
        "trainer: transformers.Trainer, which shards on GPUs alone | bare loop: the same steps around fully_shard",
        ["trainer", "bare loop"],
        "bare loop",
        gpu="trainer",
    ),
    labels=choice(
        "answer | source, source_prompt: the workshop's own, which train something else",
        ["answer", "source", "source_prompt"],
        "answer",
    ),
    train_size=whole(
        "rows to train on; the workshop has 500, and 400 in its weak scaling", 1, 1_000_000, 32, tiny=8, gpu=400
    ),
    eval_size=whole("rows to take the evaluation loss of, after each epoch", 1, 1_000_000, 8, tiny=4, gpu=100),
    max_length=whole("tokens of a row", 16, 65_536, 64, gpu=512),
    new_tokens=whole("tokens that the data set leaves room for in prompts to generate from", 1, 65_536, 8, gpu=50),
    vocab_size=whole(
        "entries of the model's embedding, and those that a tokenizer is trained to",
        258,
        10_000_000,
        1000,
        tiny=512,
        gpu=50000,
    ),
    num_epochs=whole("times that training goes through its rows; the workshop has 5", 1, 1000, 1, gpu=5),
    grad_acc=whole("batches that are accumulated to an optimizer step", 1, 65_536, 1),
    learning_rate=number("of AdamW, at its first step; falls to 0 in a line", 0, 1, 5e-05, above=True),
    weight_decay=number("of AdamW", 0, 1, 0.01),
    dtype=choice("fp32 | fp16, bf16: mixed precision", ["fp32", "fp16", "bf16"], "fp32", gpu="fp16"),
    logging_steps=whole("optimizer steps between two logs", 1, 100_000, 2, tiny=1, gpu=10),
)

SHOWN = Shown(
    tables=("fsdp.weak_setup", "fsdp.weak_scaling"),
    figures=("fsdp.weak_scaling",),
    reads=("all_reduce", "communication_nodes"),
)
