"""Keys of experiments.baseline with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choice, choices, devices, experiment, flag, number, whole

LEVELS = experiment(
    "Training on one device without FSDP: BLOOM, and the workshop's custom model, keys named as there",
    (("source_rows", "train_size"),),
    rounds=shared.ROUNDS,
    model=choices("bloom: model_name | simple_gpt: of hidden_size, num_layers, …", ["bloom", "simple_gpt"]),
    device=devices(["cpu"], gpu=["cuda"]),
    labels=choices(
        "answer: after its prompt in one sequence, the prompt masked | source: the workshop's way", ["answer", "source"]
    ),
    model_name=shared.BLOOM,
    max_length=whole("tokens of a row", 16, 8192, 256, tiny=96, gpu=512),
    train_size=whole("rows to train on", 1, 100_000, 16, tiny=8, gpu=500),
    source_rows=whole("of them, those that bloom trains on with labels: source", 1, 100_000, 16, tiny=8, gpu=500),
    eval_size=whole("questions to evaluate", 1, 100_000, 8, tiny=4, gpu=100),
    num_epochs=whole("passes over the rows", 1, 1000, 5, tiny=3),
    batch_size=whole("rows of a batch", 1, 1024, 1),
    grad_acc=whole("batches of an optimizer step", 1, 1024, 4),
    learning_rate=number("at the start; it falls linearly to nothing", 0, 1, 0.003, gpu=5e-05),
    weight_decay=number("of AdamW", 0, 1, 0.01),
    fp16=flag("autocast with a loss scaler; on a GPU alone", False, gpu=True),
    bf16=flag("autocast; neither of the two: fp32", False),
    gradient_checkpointing=flag("true: keep only each layer's input for backward", False),
    vocab_size=whole(
        "entries asked of a tokenizer that is trained on the rows", 258, 1_000_000, 2000, tiny=512, gpu=50000
    ),
    model_vocab_size=whole(
        "entries of the small model's embedding; the workshop's script takes its tokenizer's whatever vocab_size is",
        258,
        1_000_000,
        2000,
        tiny=512,
        gpu=250680,
    ),
    hidden_size=whole("of the small model, as the four below", 2, 65_536, 64, tiny=16, gpu=1024),
    num_layers=whole("of its encoder", 1, 1000, 1),
    num_heads=whole("divisors of hidden_size", 1, 1024, 4, tiny=2, gpu=8),
    ffn=whole("inner width of the feed-forward block", 1, 262_144, 256, tiny=32, gpu=8192),
    tied=flag("true: the head's matrix is the embedding's", False),
    eval_strategy=choice("no | steps | epoch", ["no", "steps", "epoch"], "epoch"),
    save_strategy=shared.SAVE,
    logging_steps=whole("optimizer steps of one point of the training loss", 1, 10_000, 1, gpu=10),
    new_tokens=whole("most tokens of an answer", 1, 1024, 8, tiny=4, gpu=50),
    generation_batch=whole("questions answered at once", 1, 10_000, 50),
)

SHOWN = Shown(
    tables=(
        "fsdp.baseline_losses",
        "fsdp.baseline_answers",
        "fsdp.custom_single_node_losses",
        "fsdp.custom_single_node_answers",
        "fsdp.labels",
        "fsdp.single_runs",
    ),
    figures=("fsdp.baseline_losses", "fsdp.custom_single_node_losses"),
)
