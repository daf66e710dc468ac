"""communication_accounting: its tables against the published answers, by hand, and in other circumstances."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_cells import as_record

from perfscribe.analytic import traffic
from perfscribe.analytic.communication import Inputs, account
from perfscribe.experiments.cs336.communication_accounting import measure, show
from perfscribe.plan import plan

NAME = "communication_accounting"


# brandon-snider/cs336-a2, writeup: batch 128, context 1024, 1 GB = 2^30 bytes; its own rounding.
PUBLISHED = {"state": (3276, 0.5), "saved": (2142, 0.5), "devices": (68, 0), "divided": (4347, 0.5)}
PUBLISHED |= {"n_fsdp_divided": (46, 0), "n": (64, 0), "alpha": (2555, 1), "best": (246, 1)}
PUBLISHED |= {"best_batch": (15_800, 110)}


def test_published_answers_and_why_others_have_none() -> None:
    (cell,) = plan.planned_cells({}, NAME, "cpu")
    made = {table.id: table for table in show.tables({NAME: [as_record(NAME, cell, measure.run(cell))]})}
    steps = made["cs336.communication_steps"]
    known = {row.step: row.value for row in steps.ok.itertuples()}
    for name, (published, rounding) in PUBLISHED.items():
        assert known[name] == pytest.approx(published, abs=rounding), name
    assert len(known) == len(steps.frame) and any(steps.frame["published_brandon-snider"] != "none")
    lines = {line.name: line for line in account(Inputs(tensor_devices=64))}
    for name in ("summed", "summed_batch", "hidden", "hidden_batch"):
        assert lines[name].value is None and lines[name].formula.startswith("none: TP takes longer")


@given(st.integers(1024, 65536), st.integers(1, 64), st.integers(1, 16), st.integers(1, 3), st.integers(1, 3))
def test_bounds_are_where_the_times_are_equal(d_ff: int, x: int, y: int, m_x: int, m_y: int) -> None:
    inputs = Inputs(d_ff=d_ff, fsdp_devices=x, tensor_devices=y, fsdp_axes=m_x, tensor_axes=m_y)
    found = {line.name: line.value for line in account(inputs)}
    d, c, w = inputs.d_model, inputs.flop_per_s, inputs.bandwidth_bytes_per_s

    def times(tokens: float) -> tuple[float, float, float]:
        compute = 4 * tokens * d * d_ff / (x * y * c)
        return compute, 4 * d * d_ff / (y * w * m_x), 4 * tokens * d / (x * w * m_y)

    if found["summed_batch"] is not None and found["hidden_batch"] is not None:
        compute, fsdp, tensor = times(found["summed_batch"])
        assert compute == pytest.approx(fsdp + tensor, rel=1e-6)
        compute, fsdp, tensor = times(found["hidden_batch"])
        assert compute == pytest.approx(max(fsdp, tensor), rel=1e-6)
    elif found["hidden_batch"] is None:
        compute, _, tensor = times(1e9)
        assert tensor > compute


@pytest.mark.parametrize(("d_ff", "m_x", "m_y"), [(53248, 2, 1), (8192, 1, 2)])
def test_remedies_are_the_least_batches(d_ff: int, m_x: int, m_y: int) -> None:
    """Each is the least over X and Y of the batch at which the times of the counters' formulas are equal."""
    inputs = Inputs(d_ff=d_ff, fsdp_axes=m_x, tensor_axes=m_y)
    found = {line.name: line.value or 0.0 for line in measure.remedies(inputs)}
    alpha = inputs.flop_per_s / inputs.bandwidth_bytes_per_s

    def least(at_once: bool, weight_bytes: float, faster: float = 1.0) -> float:
        tokens = []
        for step in range(1, 4001):
            y = step / 4000  # share of compute's time that tensor parallelism communicates
            devices_y = y * m_y * d_ff * faster / alpha
            fsdp = alpha / faster / (m_x * devices_y) * weight_bytes / 2
            tokens.append(fsdp if at_once else fsdp / (1 - y) if y < 1 else float("inf"))
        return min(tokens)

    assert found["overlapped"] == pytest.approx(least(True, 2), rel=1e-3)
    assert found["one_byte"] == pytest.approx(least(False, 1), rel=1e-3)
    assert found["both"] == pytest.approx(least(True, 1), rel=1e-3)
    assert found["bandwidth"] == pytest.approx(least(False, 2, faster=2), rel=1e-3)
    assert found["both_batch"] == found["both"] * 64
    assert found["pipeline"] == pytest.approx((2 * 16384 / 1.8e11) / (4 * 16384 * d_ff / 4.6e14))


def test_rates_as_nccl_tests_has_them() -> None:
    assert traffic.busbw_gb_per_s("all_reduce", 2, 2**30, 3.301) == pytest.approx(325, abs=0.5)
    assert traffic.busbw_gb_per_s("all_reduce", 4, 2**30, 4.534) == pytest.approx(355, abs=0.5)
    assert traffic.algbw_gb_per_s(10**9, 1000.0) == 1.0
    factors = [traffic.bus_factor(name, 4) for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")]
    assert factors == [1.5, 0.75, 0.75, 1]
