"""Keys of experiments.custom_multi_gpu with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config.keys import choice, choices, experiment, flag, number, section, whole, wholes

LEVELS = experiment(
    "The workshop's SimpleGPTModel on several GPUs, by Trainer, by a bare loop, and tuned",
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
    hidden_size=whole("width of the model", 1, 65_536, 64, tiny=32, gpu=2048),
    num_heads=whole("attention heads", 1, 1024, 4, tiny=2, gpu=16),
    ffn=whole("width of its feed-forward layers", 1, 1_048_576, 128, tiny=64, gpu=8192),
    num_layers=whole("layers", 1, 1000, 3, tiny=1),
    loop=choices(
        "trainer, bare loop; tuned: bf16, compiled, a batch that fills the memory; the first is the workshop's tables'",
        ["trainer", "bare loop", "tuned"],
        ["bare loop"],
        gpu=["trainer", "bare loop", "tuned"],
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
        "entries of the model's embedding, and those that a tokenizer is trained to",
        258,
        10_000_000,
        1000,
        tiny=512,
        gpu=50000,
    ),
    num_epochs=whole("times that training goes through its rows; the workshop has 5", 1, 1000, 1, gpu=5),
    batch_size=whole("rows of each rank at once", 1, 65_536, 1),
    grad_acc=whole("batches that are accumulated to an optimizer step", 1, 65_536, 2, tiny=1, gpu=4),
    learning_rate=number("of AdamW, at its first step; falls to 0 in a line", 0, 1, 5e-05, above=True),
    weight_decay=number("of AdamW", 0, 1, 0.01),
    dtype=choice("fp32 | fp16, bf16: mixed precision", ["fp32", "fp16", "bf16"], "fp32", gpu="fp16"),
    logging_steps=whole("optimizer steps between two logs", 1, 100_000, 2, tiny=1, gpu=10),
    tuned=section(
        "in place of the workshop's settings",
        dtype=choice("parameters are gathered in it", ["fp32", "fp16", "bf16"], "bf16"),
        world_size=wholes("ranks", 1, 1024, [1, 2, 4, 8]),
        memory_percent=whole("share of the GPU's memory that the batch is raised to", 1, 95, 80),
        steps=whole("optimizer steps that are timed", 2, 10_000, 20),
        compiled=flag("whether blocks and loss are compiled", True),
    ),
)

SHOWN = Shown(
    tables=("fsdp.custom_multi_gpu", "fsdp.custom_multi_node", "fsdp.custom_loops"),
    figures=("fsdp.custom_scaling",),
    reads=("all_reduce", "communication_nodes"),
)
