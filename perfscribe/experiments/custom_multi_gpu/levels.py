"""Keys of experiments.custom_multi_gpu with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import experiment, whole

LEVELS = experiment(
    "The workshop's SimpleGPTModel on several GPUs, by Trainer, and tuned",
    rounds=shared.ROUNDS,
    **shared.RANKS,
    **shared.SIMPLE_GPT,
    num_layers=whole("layers", 1, 1000, 3, tiny=1),
    loop=shared.LOOPS,
    wrap=shared.wrap(["FSDP1"]),
    **shared.training(
        shared.SIMPLE_GPT_VOCABULARY,
        12,
        batch_size=shared.BATCH_SIZE,
        grad_acc=whole("batches that are accumulated to an optimizer step", 1, 65_536, 2, tiny=1, gpu=1),
    ),
    tuned=shared.TUNED,
)

SHOWN = Shown(
    tables=("fsdp.custom_multi_gpu", "fsdp.custom_multi_node", "fsdp.custom_loops"),
    figures=("fsdp.custom_scaling",),
)
