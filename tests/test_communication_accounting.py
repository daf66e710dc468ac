"""communication_accounting: each step against the published answers, and against itself in other circumstances."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscribe.analytic import traffic
from perfscribe.analytic.communication import Inputs, account


def values(**changed: float) -> dict[str, float | None]:
    return {line.name: line.value for line in account(Inputs(**changed))}


# brandon-snider/cs336-a2, writeup: batch 128, context 1024, 1 GB = 2^30 bytes; its own rounding.
PUBLISHED = {
    "state": (3276, 0.5),
    "saved": (2142, 0.5),
    "devices": (68, 0),
    "divided": (4347, 0.5),
    "n_fsdp_divided": (46, 0),
    "alpha": (2555, 1),
    "n": (64, 0),
    "best": (246, 1),
    "best_batch": (15_800, 110),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_answers(name):
    published, rounding = PUBLISHED[name]
    assert values()[name] == pytest.approx(published, abs=rounding)


def test_devices_before_activations():
    assert values()["devices_state"] == 41
    assert values(gb_bytes=10**9)["devices_state"] == 44


def test_by_hand():
    found = values()
    assert found["parameters"] == 126 * 2 * 16384 * 53248
    assert found["saved_per_token"] == 17_547_264
    assert found["undivided"] == 1071
    assert found["n_fsdp"] is None
    small = values(tokens=4096)
    assert small["n_fsdp"] == math.floor((3276 + 33.46875) / (95 - 33.46875)) + 1 == 54
    assert found["most_tokens"] == math.floor(95 * 2**30 / (17_547_264 / 2))
    assert found["hidden"] == pytest.approx(2555.5556 / 8, rel=1e-6)
    assert found["summed"] == pytest.approx(319.4444 / (1 - 10222.22 / 53248), rel=1e-5)


@given(
    st.integers(1024, 65536), st.integers(1, 64), st.integers(1, 16), st.integers(1, 3), st.integers(1, 3),
    st.floats(0.5, 2),
)  # fmt: skip
def test_bounds_are_where_the_times_are_equal(d_ff, x, y, m_x, m_y, slower):
    inputs = Inputs(d_ff=d_ff, fsdp_devices=x, tensor_devices=y, fsdp_axes=m_x, tensor_axes=m_y)
    found = {line.name: line.value for line in account(inputs)}
    d, c, w = inputs.d_model, inputs.flop_per_s, inputs.bandwidth_bytes_per_s

    def times(tokens: float) -> tuple[float, float, float]:
        compute = 4 * tokens * d * d_ff / (x * y * c)
        return compute, 4 * d * d_ff / (y * w * m_x), 4 * tokens * d / (x * w * m_y)

    if found["summed_batch"] is not None:
        compute, fsdp, tensor = times(found["summed_batch"])
        assert compute == pytest.approx(fsdp + tensor, rel=1e-6)
        compute, fsdp, tensor = times(found["hidden_batch"])
        assert compute == pytest.approx(max(fsdp, tensor), rel=1e-6)
    elif found["hidden_batch"] is None:
        compute, _, tensor = times(1e9)
        assert tensor > compute


def test_the_best_mesh_is_the_best():
    """With X as best_x says, the batch of `best` is just enough; any other X needs more."""
    found = values()
    devices, alpha, best_x = 64, found["alpha"], found["best_x"]

    def least(x: float) -> float:
        share = devices / x * alpha / 53248
        return math.inf if share >= 1 else alpha / 2 / (devices / x) / (1 - share)

    assert least(best_x) == pytest.approx(found["best"], rel=1e-9)
    assert all(least(best_x * factor) > found["best"] for factor in (0.8, 0.95, 1.05, 1.5, 16 / best_x))


def test_what_has_no_answer_says_why():
    lines = {line.name: line for line in account(Inputs(tensor_devices=64))}
    for name in ("summed", "summed_batch", "hidden", "hidden_batch"):
        assert lines[name].value is None and lines[name].formula.startswith("none: TP takes longer")
    assert account(Inputs())[9].formula == "none: (1 - s) A alone exceeds the memory"
    all_divided = {line.name: line for line in account(Inputs(sharded_activations=1))}
    assert all_divided["most_tokens"].value is None and all_divided["n_fsdp"].value == 58


def test_lines_make_a_table():
    lines = account(Inputs())
    assert len({line.name for line in lines}) == len(lines)
    assert [line.part for line in lines] == sorted(line.part for line in lines)
    assert all(line.formula and line.unit and line.quantity for line in lines)


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"flop_per_s": -1.0}, {"sharded_activations": 1.5}])
def test_inputs_that_cannot_be(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"^{name} .*: expected a"):
        Inputs(**wrong)


# --- rates of collectives ---------------------------------------------------------------------------------------


def test_rates_as_nccl_tests_has_them():
    assert traffic.busbw_gb_per_s("all_reduce", 2, 2**30, 3.301) == pytest.approx(325, abs=0.5)
    assert traffic.busbw_gb_per_s("all_reduce", 4, 2**30, 4.534) == pytest.approx(355, abs=0.5)
    assert traffic.algbw_gb_per_s(10**9, 1000.0) == 1.0
    factors = {name: traffic.bus_factor(name, 4) for name in traffic.BUS_FACTORS}
    assert factors == {
        "all_reduce": 1.5,
        "all_gather": 0.75,
        "reduce_scatter": 0.75,
        "all_to_all": 0.75,
        "broadcast": 1,
    }
    assert traffic.bus_factor("all_reduce", 1) == 0


def test_formulas_in_words_are_those_computed():
    for words, factor in traffic.BUS_FACTORS.values():
        python = words.replace("2(", "2*(")
        for n in (2, 3, 8):
            numerator, _, denominator = python.partition("/")
            inner = {"2*(n - 1)": 2 * (n - 1), "(n - 1)": n - 1, "1": 1}[numerator]
            assert factor(n) == inner / (n if denominator else 1)


def test_what_mb_means():
    assert traffic.size_bytes(1, "10^6") == 1_000_000
    assert traffic.size_bytes(1000, "2^20") == 1_048_576_000
    assert traffic.size_bytes(0.0016, "10^6") == 1600
    for size_mb, megabyte in ((1, "MiB"), (0, "10^6"), (float("nan"), "10^6")):
        with pytest.raises(ValueError):
            traffic.size_bytes(size_mb, megabyte)
    with pytest.raises(ValueError, match="expected one of all_reduce"):
        traffic.bus_factor("gossip", 2)
