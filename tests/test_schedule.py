"""Which rows each rank trains on and when, and the learning rate, as transformers.Trainer has them."""

import pytest

from perfscribe.training import schedule
from perfscribe.training.knobs import Knobs


@pytest.mark.parametrize(("rows", "world_size", "steps"), [(500, 1, 125), (500, 2, 63), (500, 4, 32), (500, 8, 16)])
def test_optimizer_steps_of_the_workshops_epoch(rows, world_size, steps):
    assert schedule.steps_per_epoch(Knobs(), rows, world_size) == steps
    assert len(schedule.epoch_steps(Knobs(), rows, 0, world_size - 1, world_size)) == steps


def test_every_row_is_trained_on_once_and_the_first_ones_fill_up():
    knobs = Knobs(batch_size=2, grad_acc=2, seed=3)
    ranks = [schedule.epoch_steps(knobs, 14, 1, rank, 4) for rank in range(4)]
    seen = sorted(row for steps in ranks for step in steps for batch in step for row in batch)
    assert len(seen) == 16 and set(seen) == set(range(14))
    assert ranks[0] != [schedule.epoch_steps(knobs, 14, 2, 0, 4)]  # another order in the next epoch
    assert all(len(batch) == 2 for steps in ranks for step in steps for batch in step)


def test_a_step_holds_the_same_rows_however_many_ranks_share_it():
    def rows_of(world_size, grad_acc):
        knobs = Knobs(grad_acc=grad_acc, seed=5)
        ranks = [schedule.epoch_steps(knobs, 24, 0, rank, world_size) for rank in range(world_size)]
        return [{row for rank in ranks for batch in rank[step] for row in batch} for step in range(len(ranks[0]))]

    assert rows_of(1, 4) == rows_of(2, 2) == rows_of(4, 1)


def test_evaluation_takes_as_many_batches_on_each_rank():
    ranks = [schedule.evaluation_batches(5, rank, 2, 2) for rank in range(2)]
    assert ranks == [[[0, 1], [4, -1]], [[2, 3], [-1, -1]]]


def test_the_rate_falls_in_a_line_to_zero():
    assert [schedule.linear_rate(step, 4) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_labels_of_a_step():
    assert schedule.label_counts([3, 5, 7], [[0], [2, 2]]) == 17
