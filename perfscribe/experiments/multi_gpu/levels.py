"""Keys of experiments.multi_gpu with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import experiment, whole

LEVELS = experiment(
    "BLOOM on several GPUs of one node, and on one GPU of each of several nodes; by Trainer, and tuned",
    rounds=shared.ROUNDS,
    **shared.RANKS,
    model_name=shared.BLOOM,
    loop=shared.LOOPS,
    wrap=shared.wrap(["FSDP1", "FSDP2"]),
    **shared.training(
        shared.BLOOM_VOCABULARY,
        12,
        batch_size=shared.BATCH_SIZE,
        grad_acc=whole("batches that are accumulated to an optimizer step", 1, 65_536, 2, tiny=1, gpu=4),
    ),
    tuned=shared.TUNED,
)

SHOWN = Shown(
    tables=("fsdp.multi_gpu", "fsdp.multi_node"),
    figures=("fsdp.multi_gpu",),
)
