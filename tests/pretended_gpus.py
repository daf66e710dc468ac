"""GPUs for the processes of a test: a pynvml, and a torch of CUDA 13, that they find in a folder before any other."""

import shutil
from pathlib import Path

PYNVML = '''"""Answers as NVML of {count} GPUs does."""
from fake_nvml import FakeNvml, NVMLError

_NVML = FakeNvml({count})


def nvmlInit():
    pass


def __getattr__(name):
    return getattr(_NVML, name)
'''


def uuids(count: int) -> list[str]:
    """Those of the GPUs, in their order."""
    return [f"GPU-{index}aaa-bbb" for index in range(count)]


def put(folder: Path, count: int) -> None:
    """Put them into a folder that is first on the path of modules."""
    shutil.copy(Path(__file__).with_name("fake_nvml.py"), folder)
    (folder / "pynvml.py").write_text(PYNVML.format(count=count))
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise ImportError('a stand-in: there is nothing to compute with')\n")
    (folder / "torch" / "version.py").write_text('__version__ = "2.11.0+cu130"\ncuda = "13.0"\n')
