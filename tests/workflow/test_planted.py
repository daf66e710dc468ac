"""The list of planted faults fits the code; planting them is for tests/planted/plant.py."""

from planted import plant

FAULTS = plant.load()


def test_each_fault_fits_its_file_and_still_compiles() -> None:
    assert len({fault["id"] for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert fault.keys() == {"id", "file", "old", "new", "why", "tests"} and fault["new"] != fault["old"], fault[
            "id"
        ]
        text = plant.planted(fault)
        assert text is not None, f"{fault['id']}: {fault['file']} does not hold {fault['old']!r} exactly once"
        if fault["file"].endswith(".py"):
            compile(text, fault["file"], "exec")
        assert 1 <= len(fault["tests"]) <= 3 and all((plant.ROOT / name).is_file() for name in fault["tests"])
