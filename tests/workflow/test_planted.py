"""The list of planted faults fits the code; planting them is for tests/planted/plant.py."""

import pytest
from planted import plant

FAULTS = plant.load()


def test_each_fault_has_its_own_name() -> None:
    assert len({fault["id"] for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault["id"] for fault in FAULTS])
def test_a_fault_fits_its_file_and_still_compiles(fault: plant.Fault) -> None:
    assert fault.keys() == {"id", "file", "old", "new", "why", "tests"}
    assert fault["new"] != fault["old"]
    text = plant.planted(fault)
    assert text is not None, f"{fault['file']} does not hold {fault['old']!r} exactly once"
    if fault["file"].endswith(".py"):
        compile(text, fault["file"], "exec")
    assert 1 <= len(fault["tests"]) <= 3
    for name in fault["tests"]:
        assert (plant.ROOT / name).is_file()
