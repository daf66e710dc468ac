"""Section 8 of CS336's edition of 2026: the printed forms against devices that compute and send, step by step."""

import random
import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from perfscribe.analytic.parallelism import device_limits
from perfscribe.analytic.parameters import transformer_parameters
from perfscribe.analytic.shapes import Shape
from perfscribe.base import chapters
from perfscribe.report import rows
from perfscribe.report.page import Problem
from perfscribe.show.rounding import Number

ROOT = Path(__file__).parents[2]
BYTES = 2
PROBLEMS = ["alternate_ring_all_reduce", "data_parallel_calcs", "fsdp_calcs", "tp_calcs", "fsdp_tp_calcs"]
Array = Any
Times = Callable[[int, int], tuple[Any, Any, Any]]  # of N_FSDP x N_TP devices: products, FSDP's and TP's communication


def problem(key: str, site: str = "cpu2") -> Problem:
    return Problem(chapters.read("cs336-2026"), key, rows.of_name(ROOT, site))


@cache
def forms(key: str) -> dict[str, list[Any]]:
    """Printed forms of a problem by letter, compiled; of an inequality its right side."""
    found: dict[str, list[Any]] = {}
    for text in problem(key).texts:
        for form in re.findall(r"`([^`]+)`", text.markdown()):
            code = form.split(" ≤ ")[-1].replace("·", "*").replace("²", "**2")
            found.setdefault(text.letter, []).append(compile(code, form, "eval"))
    return found


def value(form: Any, **names: Any) -> Any:
    return eval(form, {"max": max, **names})


class Ring:
    """Devices in a ring. sent: bytes that each sent, the same for all."""

    sent = 0

    def passed_on(self, parts: list[Array]) -> list[Array]:
        """Parts of each device after all sent theirs to the next."""
        assert len({part.size for part in parts}) == 1
        self.sent += BYTES * parts[0].size
        return [parts[-1], *parts[:-1]]

    def all_gather(self, shards: list[Array]) -> list[Array]:
        n = len(shards)
        chunks = [[shard] * n for shard in shards]
        for step in range(1, n):
            shards = self.passed_on(shards)
            for i in range(n):
                chunks[i][(i - step) % n] = shards[i]
        return [np.concatenate(of_device) for of_device in chunks]

    def reduce_scatter(self, wholes: list[Array]) -> list[Array]:
        n = len(wholes)
        chunks = [np.split(whole.ravel(), n) for whole in wholes]
        sums = [chunks[i][(i - 1) % n] for i in range(n)]
        for step in range(1, n):
            sums = [part + chunks[i][(i - step - 1) % n] for i, part in enumerate(self.passed_on(sums))]
        return sums

    def all_reduce(self, wholes: list[Array]) -> list[Array]:
        return [whole.reshape(wholes[0].shape) for whole in self.all_gather(self.reduce_scatter(wholes))]

    def alternate_all_reduce(self, wholes: list[Array]) -> list[Array]:
        sums, received = wholes, wholes
        for _ in wholes[1:]:
            received = self.passed_on(received)
            sums = [a + b for a, b in zip(sums, received, strict=True)]
        return sums


@cache
def layer_flop(tokens: int, width: int, inner: int) -> dict[str, int]:
    """FLOP of the layer with f(x1) = x1², as torch counts them."""
    shapes = ((tokens, width), (width, inner), (width, inner), (inner, width))
    x, w1, w2, w3 = (torch.zeros(shape, device="meta", requires_grad=True) for shape in shapes)
    with FlopCounterMode(display=False) as forward:
        y = (x @ w1) ** 2 * (x @ w2) @ w3
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()
    return {"forward": forward.get_total_flops(), "backward": backward.get_total_flops()}


def counted(sizes: tuple[int, int, int], fsdp: int, tensor: int, is_sharded: bool = True) -> dict[str, Any]:
    """FLOP and bytes sent per device of a mesh. is_sharded: FSDP shards matrices and gradients; else DDP."""
    tokens, width, inner = sizes
    rings = {name: Ring() for name in ("forward_fsdp", "backward_fsdp", "forward_tp", "backward_tp")}
    for matrix in [np.zeros(width * inner // tensor)] * 3:
        for name in ("forward_fsdp", "backward_fsdp") if is_sharded else ():
            rings[name].all_gather(np.split(matrix, fsdp))
        (Ring.reduce_scatter if is_sharded else Ring.all_reduce)(rings["backward_fsdp"], [matrix] * fsdp)
    for name in ("forward_tp", "backward_tp"):
        rings[name].all_reduce([np.zeros(tokens // fsdp * width)] * tensor)
    return layer_flop(tokens // fsdp, width, inner // tensor) | {name: ring.sent for name, ring in rings.items()}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_rings_send_what_their_forms_say(n: int) -> None:
    tensors = [np.random.default_rng(i).integers(-9, 10, 12) for i in range(n)]
    (form, usual) = forms("alternate_ring_all_reduce")[""]
    for method, expected in ((Ring.alternate_all_reduce, form), (Ring.all_reduce, usual)):
        ring = Ring()
        assert all(np.array_equal(got, sum(tensors)) for got in method(ring, tensors))
        assert ring.sent == value(expected, N=Fraction(n), S=BYTES * 12, W=1)


@pytest.mark.parametrize("sizes", [(24, 12, 24), (12, 24, 36), (36, 12, 12)])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_flop_and_bytes_are_what_the_devices_count(sizes: tuple[int, int, int], n: int) -> None:
    names = dict(zip(("B", "D", "D_FF"), map(Fraction, sizes), strict=True))
    names |= {"N_DP": n, "N_FSDP": n, "N_TP": n, "W": 1}
    data, fsdp, tensor, mesh = map(forms, PROBLEMS[1:])
    counts = counted(sizes, n, 1, is_sharded=False)
    assert [value(data[letter][0], **names) for letter in "ab"] == [counts["backward"], counts["backward_fsdp"]]
    assert counts["forward_fsdp"] == 0
    counts = counted(sizes, n, 1)
    assert [value(form, **names) for form in fsdp["a"]] == [counts["backward"], counts["forward"]]
    assert [value(form, **names) for form in fsdp["b"]] == [counts["backward_fsdp"], counts["forward_fsdp"]]
    counts = counted(sizes, 1, n)
    assert [value(form, **names) for form in tensor["b"]] == [counts["forward"], counts["backward"]]
    assert [value(form, **names) for form in tensor["c"]] == [counts["forward_tp"], counts["backward_tp"]]
    for other in (1, 2, 3):
        names["N_TP"] = other
        counts = counted(sizes, n, other)
        assert value(mesh["a"][0], **names) == counts["forward"]
        assert value(mesh["b"][0], **names) == max(counts["forward_fsdp"], counts["forward_tp"])
        for is_backward, name in enumerate(("forward", "backward")):
            times = times_of(names, 1, 1, bool(is_backward))(n, other)
            assert times == (counts[name], counts[f"{name}_fsdp"], counts[f"{name}_tp"])


def times_of(sizes: dict[str, Any], c: Any, w: Any, is_backward: bool) -> Times:
    """Times on a mesh, by the forms of FSDP for a part of D_FF and of TP for a part of B."""
    fsdp, tensor = forms("fsdp_calcs"), forms("tp_calcs")
    flop, gather, reduce = fsdp["a"][not is_backward], fsdp["b"][not is_backward], tensor["c"][is_backward]
    b, d, d_ff = (sizes[name] for name in ("B", "D", "D_FF"))

    def times(n: Any, m: Any) -> tuple[Any, Any, Any]:
        part = {"B": b, "D": d, "D_FF": d_ff / m, "N_FSDP": n, "W": w}
        return value(flop, **part) / c, value(gather, **part), value(reduce, B=b / n, D=d, N_TP=m, W=w)

    return times


def drawn(seed: int, most: int) -> tuple[dict[str, Any], Fraction, Fraction]:
    """Sizes, C and W for which no axis has more than `most` + 1 devices."""
    rng = random.Random(seed)
    sizes = {name: Fraction(rng.randint(1, 10**4)) for name in ("B", "D", "D_FF")}
    ratio = Fraction(rng.randint(1, most * 1000), 1000) / max(sizes["B"], 3 * sizes["D_FF"])
    w = Fraction(rng.randint(1, 10**6), rng.randint(1, 10**3))
    return sizes, w / ratio, w


@pytest.mark.parametrize("seed", range(12))
def test_limits_of_one_axis_are_where_a_search_ends(seed: int) -> None:
    sizes, c, w = drawn(seed, 40)
    names = {**sizes, "C": c, "W": w}
    limits = device_limits(sizes["B"], sizes["D_FF"], c, w)
    data, fsdp, tensor = map(forms, PROBLEMS[1:4])

    def check(hidden: list[bool], limit: Any, form: Any) -> None:
        """The largest number of devices whose communication is hidden is the limit."""
        assert 1 + max(n for n in range(99) if hidden[n]) == limit // 1 == value(form, **names) // 1

    hidden = [value(data["b"][0], N_DP=n, **names) <= value(data["a"][0], N_DP=n, **names) / c for n in range(1, 100)]
    check(hidden, limits["data parallel"][1], data["c"][0])
    for is_backward in (False, True):
        times = times_of(sizes, c, w, is_backward)
        by_fsdp, by_tp = ([times(n, 1) for n in range(1, 100)], [times(1, n) for n in range(1, 100)])
        check([at[1] <= at[0] for at in by_fsdp], limits["FSDP"][is_backward], fsdp["c"][not is_backward])
        check([at[2] <= at[0] for at in by_tp], limits["TP"][is_backward], tensor["d"][not is_backward])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("is_backward", [False, True])
def test_limits_of_a_mesh_are_those_of_a_search_over_its_sides(seed: int, is_backward: bool) -> None:
    sizes, c, w = drawn(seed, 12)
    limits = device_limits(sizes["B"], sizes["D_FF"], c, w)
    overlapped, in_turn_ = (limits[f"FSDP × TP, {how}overlapped"][is_backward] for how in ("", "not "))
    # Fractions too: the line of the equation without overlap is on this grid's diagonal.
    floats = {name: float(size) for name, size in sizes.items()}
    n, m = np.meshgrid(*(np.linspace(1, 2 * float(limits[name][is_backward]) - 1, 1001) for name in ("FSDP", "TP")))
    products, fsdp, tensor = times_of(floats, float(c), float(w), is_backward)(n, m)
    for communication, limit in ((np.maximum(fsdp, tensor), overlapped), (fsdp + tensor, in_turn_)):
        assert (n * m)[communication <= (1 + 1e-9) * products].max() == pytest.approx(float(limit), rel=1e-5)
    if not is_backward:
        printed, names = forms("fsdp_tp_calcs"), {**sizes, "C": c, "W": w}
        a, b = sizes["B"] * w / c, 3 * sizes["D_FF"] * w / (2 * c)
        interior, edge = (value(form, a=a, b=b) for form in printed["d"])
        assert value(printed["c"][0], **names) == overlapped
        assert (edge if a < b / (b + 1) or b < a / (a + 1) else interior) == in_turn_


def test_numbers_are_those_of_the_forms_at_measured_rates() -> None:
    site = rows.of_name(ROOT, "h200x4")
    c = 1e12 * max(row["rate"] for row in site.table("cs336.ceilings_products").rows if row["dtype"] == "bf16")
    reductions = {(r["backend"], r["message"], r["world_size"]): r for r in site.table("cs336.all_reduce").rows}
    w = reductions["nccl", "1 GB", 4]["busbw_gb_per_s"]
    names = {"B": 4 * 512, "D_FF": 10240, "C": c, "W": 1e9 * w}
    data, fsdp, tensor, mesh = (
        [str(Number(value(form, **names))) for form in forms(key)[letter]]
        for key, letter in zip(PROBLEMS[1:], "ccdc", strict=True)
    )
    (table,) = problem("fsdp_tp_calcs", "h200x4").tables
    cells = {line[0].text: [cell.text for cell in line[1:]] for line in table.rows}
    assert cells["data parallel"][1:] == data and cells["FSDP"] == fsdp[::-1] and cells["TP"] == tensor[::-1]
    assert cells["FSDP × TP, overlapped"][:1] == mesh
    assert f"N_DP ≤ {data[0]}." in problem("data_parallel_calcs", "h200x4").markdown({})
    assert f"N_FSDP ≤ {fsdp[0]} in both." in problem("fsdp_calcs", "h200x4").markdown({})
    assert "N_TP ≤ {} backward and {} forward.".format(*tensor) in problem("tp_calcs", "h200x4").markdown({})


@pytest.mark.parametrize("site", ["cpu2", "h100", "h200x4"])
@pytest.mark.parametrize("key", PROBLEMS)
def test_paper_is_answered_on_every_site(key: str, site: str) -> None:
    drawn = problem(key, site)
    assert drawn.measured and drawn.answered == drawn.letters and "#not-measured-here" not in drawn.markdown({})
    is_measured = site == "h200x4"
    assert drawn.status() == ("9 of 9" if is_measured and key == "fsdp_tp_calcs" else "on paper")
    if drawn.letters:
        assert ("gives no number" in drawn.markdown({})) != is_measured
        assert ("C (a GPU" in drawn.markdown({})) == (site == "cpu2")


def test_the_leaderboard_says_that_it_is_not_measured_and_why() -> None:
    drawn = problem("leaderboard", "h200x4")
    parameters = transformer_parameters(Shape(vocab_size=151936, d_model=4096, d_ff=11008, layers=34, heads=32))
    text = drawn.markdown({})
    assert drawn.status() == "not measured" and "#not-measured-here" in text
    assert f"{parameters:,} parameters" in text and f"{16 * parameters / 2e9:.1f} per GPU" in text
