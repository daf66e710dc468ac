"""Rows of the FSDP workshop's scaling tables."""

from perfscribe.experiments.fsdp.trainings import STEPPING, rows
from perfscribe.records.records import Record


def trained(world_size: int, rate: float, steps: int) -> Record:
    factors = {"world_size": world_size, "wrap": "FSDP1", "nodes": 1, "device": "cuda", "batch_size": 1, "grad_acc": 4}
    figures = {STEPPING: rate, "stepping_steps": steps, "train_samples_per_second": 1.0, "train_runtime_s": 1.0}
    factors |= {"train_size": 500, "num_epochs": 5}
    return Record("multi_gpu", factors, "ok", "", "measured", values=figures)


def test_the_last_step_of_an_epoch_counts_its_own_rows() -> None:
    one, four = rows([trained(1, 10.0, 624), trained(4, 32.0, 159)])  # steps after the first: of 4 rows, of 16
    assert one.values[STEPPING] == 10.0
    assert four.values[STEPPING] == 32.0 * ((2500 - 16) / (159 * 16))
    assert four.values["rate_efficiency"] == 100 * four.values[STEPPING] / 10.0 / 4
