"""The experiment fsdp_accounting: waits of a trace, the plan. Memory as expected: tests/workflow/test_workflow.py."""

from perfscribe.experiments.cs336.fsdp_accounting import program
from perfscribe.plan import plan


def test_each_rank_has_its_share_of_the_editions_batch_of_four_on_two_gpus() -> None:
    cells = plan.planned_cells({}, "fsdp_accounting", "gpu")
    assert [(cell["size"], cell["seq_len"], cell["world_size"], cell["batch"], cell["dtype"]) for cell in cells] == [
        ("2.7B", 512, ranks, 2 * ranks, dtype) for dtype in ("fp32", "bf16") for ranks in (2, 4)
    ]


def test_compute_waits_for_a_gather_that_ends_before_it_goes_on() -> None:
    compute = [(10, 20), (30, 40), (60, 70)]
    assert program.waited_ns([(0, 10)], compute, 100) == 10
    assert program.waited_ns([(15, 28)], compute, 100) == 8
    assert program.waited_ns([(15, 35)], compute, 100) == 0  # it goes on beside the gather
    assert program.waited_ns([(22, 24), (45, 50)], compute, 100) == 2 + 5
    assert program.waited_ns([(22, 24), (45, 50)], compute, 40) == 2
