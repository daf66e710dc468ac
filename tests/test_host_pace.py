"""host_pace: the same pass in three experiments side by side, and what its sentence says of the host."""

from __future__ import annotations

from typing import Any

import pytest

from perfscribe.experiments.host_pace import present
from perfscribe.records import Record
from perfscribe.tables import Table


def cell(experiment: str, size: str, ms: float, device: str = "cuda", busy_ms: float = 5.0, **more: Any) -> Record:
    factors = {"size": size, "seq_len": 512, "batch": 4, "dtype": "tf32", "device": device, **more}
    name = present.OTHERS.get(experiment, "forward_ms")
    values: dict[str, Any] = {}
    samples = {name: [[0.9 * ms, ms, 1.1 * ms]]}
    if experiment == "nsys_profile":
        samples |= {"forward_range_ms": [[ms]], "forward_busy_ms": [[busy_ms]]}
        values = {"range_tool": "nsys 2025.3.2", "kernel_tool": "nsys 2025.3.2"}
    return Record(experiment, factors, "ok", "", "measured", samples=samples, values=values)


def shown(*cells: Record) -> Table:
    by_name = {name: [one for one in cells if one.experiment == name] for name in present.READS}
    (table,) = present.tables(by_name)
    return table


def said(*cells: Record) -> Any:
    (finding,) = present.findings({present.TABLES[0]: shown(*cells)})
    return finding


SITE = (
    cell("end_to_end", "small", 8.0),
    cell("end_to_end", "xl", 100.0),
    cell("end_to_end", "2.7B", 200.0),  # timed there alone
    cell("nsys_profile", "small", 16.0),
    cell("nsys_profile", "xl", 101.0, busy_ms=98.0),
    cell("torch_compile", "small", 24.0, implementation="compiled"),
    cell("torch_compile", "small", 99.0, implementation="cuda_graphs"),
)


def test_passes_that_two_experiments_timed_stand_side_by_side() -> None:
    frame = shown(*SITE).frame
    assert list(frame["size"]) == ["small", "xl"]
    small, xl = frame.iloc[0], frame.iloc[1]
    assert (small["forward_ms"], small["nsys_profile_ms"], small["torch_compile_ms"]) == (8.0, 16.0, 24.0)
    assert (small["nsys_profile_ratio"], small["torch_compile_ratio"]) == (2.0, 3.0)
    assert small["busy_percent"] == pytest.approx(100 * 5 / 24), "of the longest of the three"
    assert xl["torch_compile_ms"] == "not planned" and xl["busy_percent"] == pytest.approx(100 * 98 / 101)


def test_the_sentence_tells_launches_from_device_work() -> None:
    text = said(*SITE).text
    busy, waiting = text.split("; where it is launch-bound (busy for less): ")
    assert "device-bound (the device busy for 80 % or more of the longest of its times): 1.01 in" in busy
    assert "torch_compile" not in busy
    assert waiting.startswith("2 in nsys_profile") and "3 in torch_compile, eager (median 3 of 1)" in waiting
    assert "passes differ between experiments by up to 3 times, device-bound ones by up to 1.01: the device" in waiting
    assert text.endswith("compare within one experiment alone.")


def test_a_pass_that_waited_in_the_other_experiment_is_launch_bound() -> None:
    # the device is busy for 98 % of nsys_profile's time, and for less than half of benchmarking_script's
    cells = [*SITE, cell("end_to_end", "large", 100.0), cell("nsys_profile", "large", 47.0, busy_ms=46.0)]
    text = said(*cells).text
    busy, waiting = text.split("; where it is launch-bound (busy for less): ")
    assert "1.01 in nsys_profile, not traced (median 1.01 of 1)" in busy
    assert waiting.startswith("0.47 to 2 in nsys_profile, not traced (median 1.23 of 2)")


def test_what_follows_is_computed() -> None:
    steady = said(*SITE[1:3], cell("nsys_profile", "xl", 101.0, busy_ms=98.0)).text
    assert steady.endswith("Launches bind none of these passes, so their times compare from experiment to experiment.")
    pair = [cell("end_to_end", "xl", 100.0), cell("nsys_profile", "xl", 104.0, busy_ms=98.0)]
    same = said(cell("end_to_end", "small", 8.0), cell("nsys_profile", "small", 8.0), *pair).text
    assert same.endswith("by up to 1 times, device-bound ones by up to 1.04: the host launched at one pace.")
    alone = said(cell("end_to_end", "small", 8.0), cell("nsys_profile", "small", 16.0)).text
    assert alone.endswith("by up to 2 times; no device-bound one stands beside them.")
    untraced = said(cell("end_to_end", "small", 8.0), cell("torch_compile", "small", 8.0, implementation="compiled"))
    assert untraced.verdict == "cannot tell" and "was traced" in untraced.text


@pytest.mark.parametrize(
    ("device_bound", "launch_bound", "told"),
    [
        (1.5, 1.5, "device-bound ones by up to 1.5: the device's own times stray too, so that nothing can be told"),
        (1.4, 1.6, "device-bound ones by up to 1.4: the device's own times stray too, so that nothing can be told"),
        (
            1.3,
            None,
            "between experiments by up to 1.3 times: the device does not repeat itself, and their times",
        ),
        (1.04, 1.07, "device-bound ones by up to 1.04, about as much, so that nothing can be told of the host."),
    ],
)
def test_nothing_is_told_of_the_host_where_the_device_strays_as_well(
    device_bound: float, launch_bound: float | None, told: str
) -> None:
    cells = [cell("end_to_end", "xl", 100.0), cell("nsys_profile", "xl", 100 * device_bound, busy_ms=149.0)]
    if launch_bound is not None:
        cells += [cell("end_to_end", "small", 8.0), cell("nsys_profile", "small", 8 * launch_bound)]
    text = said(*cells).text
    assert told in text
    assert not any(one in text for one in ("the device repeats itself", "one pace", "another pace", "so their times"))


def test_a_pass_of_another_setting_is_not_compared() -> None:
    assert shown(cell("end_to_end", "small", 8.0), cell("nsys_profile", "small", 9.0, seq_len=128)).frame.empty


def test_without_a_gpu_nothing_is_said_of_launches() -> None:
    cells = [cell(name, "small", 8.0, device="cpu") for name in present.READS]
    assert list(shown(*cells).frame["busy_percent"]) == ["no launches"] and said(*cells).verdict == "cannot tell"
    assert said().verdict == "cannot tell"
