"""Keys and constants shared by several experiments: language model, training on ranks, FSDP workshop, profiles."""

from perfscribe.config.keys import Key, choice, choices, constant, constants, dtypes, lengths, sizes, whole, wholes

BACKEND = choices("gloo: processes on the CPU | nccl: a GPU for each", ["gloo", "nccl"], ["gloo"], gpu=["nccl"])

ATTENTION_LENGTHS = lengths(
    "sequence lengths, in tokens", [64, 128, 256], tiny=[16, 32, 64], gpu=[256, 1024, 4096, 8192, 16384]
)

STRATEGY_RUNS = {
    "backend": choice("gloo: processes on the CPU | nccl: a GPU for each rank", ["gloo", "nccl"], "gloo", gpu="nccl"),
    "model": choice(
        "model, with random weights; gpt-tiny is for machines without a GPU",
        ["gpt-tiny", "bloom-tiny", "bloom-micro", "bigscience/bloom-560m"],
        "gpt-tiny",
        gpu="bigscience/bloom-560m",
    ),
}
DIVIDED_BATCH = {
    "backend": BACKEND,
    "world_size": wholes("ranks", 2, 1024, [2, 4], tiny=[2]),
    "size": sizes("model sizes, as in end_to_end", ["nano"], gpu=["xl"]),
    "seq_len": lengths("sequence lengths, in tokens", [16], gpu=[128]),
    "batch": wholes("sequences in a batch, divided among the ranks", 1, 1_048_576, [4], gpu=[16]),
}
RANKS = {
    "backend": BACKEND,
    "world_size": wholes(
        "ranks on one node; with more than the machine's GPUs cells are skipped",
        1,
        1024,
        [1, 2, 4],
        tiny=[1, 2, 3],
        gpu=[1, 2, 4, 8],
    ),
    "nodes": wholes(
        "nodes of a cluster's job that train together; one machine skips them",
        2,
        1024,
        [2, 4],
        gpu=[2, 4, 8],
        empty=True,
    ),
    "ranks_per_node": wholes(
        "ranks on each of them: 1 as in the workshop, and a node's GPUs", 1, 1024, [1, 2], tiny=[1], gpu=[1, 4]
    ),
}

BLOOM = choice(
    "bloom-tiny and bloom-micro are for machines without a GPU",
    ["bigscience/bloom-560m", "bloom-micro", "bloom-tiny"],
    "bloom-micro",
    tiny="bloom-tiny",
    gpu="bigscience/bloom-560m",
)

SIMPLE_GPT = {
    "hidden_size": constant(64, tiny=32, gpu=2048),
    "num_heads": constant(4, tiny=2, gpu=16),
    "ffn": constant(128, tiny=64, gpu=8192),
}

# In place of the workshop's settings.
TUNED = constants(
    ("world_size",),
    dtype=constant("bf16"),  # parameters are gathered in it
    world_size=constant([1, 2, 4, 8]),
    memory_percent=constant(80),  # share of the GPU's memory that the batch is raised to
    steps=constant(20),
    compiled=constant(True),
)

SAVE = constant("no", gpu="epoch")  # epoch: Trainer saves after each, and keeps the last

# Why 3 rounds: two launches of one training gave 22.1 and 16.0 samples/s.
ROUNDS = whole("times that the whole grid is measured, each in fresh processes", 1, 100, 1, gpu=3)

NEW_TOKENS = constant(8, gpu=50)  # that the data set leaves room for in prompts to generate from

# Entries that a tokenizer is trained to, where the model brings none; also those of the custom model's embedding.
BLOOM_VOCABULARY = constant(2000, tiny=512, gpu=50000)
SIMPLE_GPT_VOCABULARY = constant(1000, tiny=512, gpu=250_680)

BATCH_SIZE = whole("rows of each rank at once", 1, 65_536, 1)

ADAMW = {"learning_rate": constant(5e-05), "weight_decay": constant(0.01)}

PROFILED = {
    "backend": BACKEND,
    "implementation": choices(
        "torch_ddp: PyTorch's DistributedDataParallel | ours: naive, flat, overlap_individual",
        ["naive", "flat", "overlap_individual", "torch_ddp"],
        ["torch_ddp"],
    ),
    "features": constant(64, gpu=512),
    "layers": constant(1, gpu=6),
    "d_ff": constant(128, tiny=64, gpu=2048),
    "batch": whole("samples in a batch of each rank", 1, 1_048_576, 8, tiny=4, gpu=32),
    "source_length": constant(1),
    "target_length": constant(20),
    "dtype": constant("fp32"),
    # Steps of a profile: before it, traced and forgotten, kept.
    "wait": constant(1),
    "warmup_steps": constant(1),
    "active": constant(2),
    "turns": whole("profiles of each placement; an interval needs 6 or more", 1, 1000, 6, tiny=2),
}


def language_model(meaning: str) -> dict[str, Key]:
    """Keys of a language model's step; meaning: description of `size`."""
    return {
        "size": sizes(meaning, ["nano", "micro"], tiny=["nano"], gpu=["small", "medium", "large", "xl", "2.7B"]),
        "seq_len": lengths("sequence lengths, in tokens", [32, 64, 128], tiny=[16, 32, 64], gpu=[128, 256, 512, 1024]),
        "dtype": dtypes("tf32: fp32 with TF32 matrix products; bf16, fp16: autocast", ["fp32"]),
        "batch": whole("sequences in a batch", 1, 1_048_576, 4),
    }


LOOPS = choices(
    "trainer, bare loop; tuned: bf16, compiled, a batch chosen by memory; the first is the workshop's tables'",
    ["trainer", "bare loop", "tuned"],
    ["bare loop"],
    gpu=["trainer", "tuned"],
)


def wrap(gpu: list[str]) -> Key:
    """Key for the ways to shard a model; `gpu`: the default of preset gpu."""
    meaning = "FSDP1: the whole model is one unit, as the workshop's settings took effect | FSDP2: each block is one"
    return choices(meaning, ["FSDP1", "FSDP2"], ["FSDP2"], gpu=gpu)


def training(vocab_size: Key, tiny_rows: int, **batches: Key) -> dict[str, Key]:
    """Keys of the workshop's training on ranks; batches: the keys that determine the rows per optimizer step."""
    rows = "rows to train on; the workshop has 500, and 400 in its weak scaling"
    return {
        "labels": constant("answer"),
        "train_size": whole(rows, 1, 1_000_000, 32, tiny=tiny_rows, gpu=500),
        "eval_size": constant(8, tiny=4, gpu=100),
        "max_length": whole("tokens of a row", 16, 65_536, 64, gpu=512),
        "new_tokens": NEW_TOKENS,
        "vocab_size": vocab_size,
        "num_epochs": whole("times that training goes through its rows; the workshop has 5", 1, 1000, 1, gpu=5),
        "save_strategy": SAVE,
        **batches,
        **ADAMW,
        "dtype": choice("fp32 | fp16, bf16: mixed precision", ["fp32", "fp16", "bf16"], "fp32", gpu="fp16"),
        "logging_steps": constant(2, tiny=1, gpu=10),
    }
