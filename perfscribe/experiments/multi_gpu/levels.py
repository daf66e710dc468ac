"""Keys of experiments.multi_gpu with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import choice, choices, experiment, number, whole, wholes

LEVELS = experiment(
    "BLOOM on several GPUs of one node, and on one GPU of each of several nodes",
    backend=choices("gloo: processes on the CPU | nccl: a GPU for each", ["gloo", "nccl"], ["gloo"], gpu=["nccl"]),
    world_size=wholes(
        "ranks on one node; with more than the machine's GPUs cells are skipped and predicted",
        1,
        1024,
        [1, 2, 4],
        tiny=[1, 2, 3],
        gpu=[1, 2, 4, 8],
    ),
    nodes=wholes(
        "nodes of a cluster's job that train together; one machine skips and predicts them",
        2,
        1024,
        [2, 4],
        gpu=[2, 4, 8],
        empty=True,
    ),
    ranks_per_node=wholes(
        "ranks on each of them: 1 as in the workshop, and a node's GPUs", 1, 1024, [1, 2], tiny=[1], gpu=[1, 4]
    ),
    model_name=choice(
        "bloom-tiny and bloom-micro are for machines without a GPU",
        ["bigscience/bloom-560m", "bloom-micro", "bloom-tiny"],
        "bloom-micro",
        tiny="bloom-tiny",
        gpu="bigscience/bloom-560m",
    ),
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
        "rows to train on; the workshop has 500, and 400 in its weak scaling", 1, 1_000_000, 32, tiny=12, gpu=500
    ),
    eval_size=whole("rows to take the evaluation loss of, after each epoch", 1, 1_000_000, 8, tiny=4, gpu=100),
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
    num_epochs=whole("times that training goes through its rows; the workshop has 5", 1, 1000, 1),
    batch_size=whole("rows of each rank at once", 1, 65_536, 1),
    grad_acc=whole("batches that are accumulated to an optimizer step", 1, 65_536, 2, tiny=1, gpu=4),
    learning_rate=number("of AdamW, at its first step; falls to 0 in a line", 0, 1, 5e-05, above=True),
    weight_decay=number("of AdamW", 0, 1, 0.01),
    dtype=choice("fp32 | fp16, bf16: mixed precision", ["fp32", "fp16", "bf16"], "fp32", gpu="fp16"),
    logging_steps=whole("optimizer steps between two logs", 1, 100_000, 2, tiny=1, gpu=10),
)

SHOWN = Shown(
    tables=("fsdp.multi_gpu", "fsdp.multi_node"),
    figures=("fsdp.multi_gpu",),
    reads=("all_reduce", "communication_nodes"),
)
