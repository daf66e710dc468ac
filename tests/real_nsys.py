"""Nsight Systems for tests: the machine's own, else one that a script beside the checkout unpacks, once a checkout.

nsys 2023.4, which that script unpacks, records no ranges of nvtx 0.2.12 and newer: an older nvtx is put beside it.
PERFSCRIBE_NSYS names another nsys, PERFSCRIBE_TEST_NVTX a folder with another nvtx.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfscribe.instruments.profiling import nsys
from perfscribe.instruments.tools import NSYS_VARIABLE

ROOT = Path(__file__).resolve().parents[1]
UNPACKER = ROOT.parent / "shared" / "tools" / "nsys-debian"
FOLDER = ROOT / ".perfscribe" / "test-tools"
NVTX_VARIABLE = "PERFSCRIBE_TEST_NVTX"


def _unpacked() -> bool:
    """Whether nsys and nvtx lie in FOLDER, after an attempt to put them there."""
    if not UNPACKER.is_file():
        return False
    FOLDER.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(FOLDER / "nvtx"), "nvtx==0.2.11"]
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (FOLDER / "done").is_file():
            try:
                for command in ([str(UNPACKER), str(FOLDER / "nsys")], pip):
                    subprocess.run(command, check=True, capture_output=True, timeout=240)
            except (OSError, subprocess.SubprocessError):
                return False
            (FOLDER / "done").touch()
    return True


def provide(monkeypatch: pytest.MonkeyPatch) -> nsys.Nsys:
    """An nsys, for this test also the one that the code under test finds; skips the test where there is none.

    Programs find the project, and an nvtx package that this nsys knows.
    """
    found = nsys.find()
    if found is None and _unpacked():
        monkeypatch.setenv(NSYS_VARIABLE, str(FOLDER / "nsys" / "bin" / "nsys"))
        monkeypatch.setenv(NVTX_VARIABLE, str(FOLDER / "nvtx"))
        found = nsys.find()
    if found is None:
        pytest.skip(f"no nsys on this machine ({NSYS_VARIABLE} may name one)")
    packages = [os.environ.get(NVTX_VARIABLE), str(ROOT), os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, packages)))
    return found
