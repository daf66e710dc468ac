"""The CUDA context that is made beside the imports."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from perfscribe.run import device_start


def a_cell(*requires: str, skip: str = "") -> dict[str, Any]:
    return {"requires": list(requires), "skip": skip}


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        ([a_cell("cuda", "bf16")], True),
        ([a_cell(), a_cell("cuda")], True),
        ([a_cell(), a_cell("bf16")], False),
        ([a_cell("cuda:2")], False),
        ([a_cell("cuda"), a_cell("cuda:2")], False),  # ranks are forked from this process
        ([a_cell("cuda", skip="too large")], False),
        ([], False),
    ],
)
def test_a_context_is_wanted_where_cells_use_the_device_of_their_own_process(cells: Any, wanted: bool) -> None:
    assert device_start.is_wanted(cells) is wanted


class Driver:
    """A driver's library that notes what it is asked for; `fails` names the call that gives an error."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.calls = fails, []

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> int:
            self.calls.append(name)
            return 100 if name == self.fails else 0

        return call


@pytest.mark.parametrize(
    ("fails", "calls"),
    [
        ("", ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]),
        ("cuInit", ["cuInit"]),
        ("cuDeviceGet", ["cuInit", "cuDeviceGet"]),
    ],
)
def test_the_first_device_s_own_context_is_made(monkeypatch: pytest.MonkeyPatch, fails: str, calls: list[str]) -> None:
    driver = Driver(fails)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    thread = device_start.begin()
    assert thread is not None
    thread.join(10)
    assert driver.calls == calls


def test_without_a_driver_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_start, "LIBRARY", "libno_such_driver.so.1")
    assert device_start.begin() is None
