"""Synthetic data sets: their content, their formats, the digest file, and what happens to damaged ones."""

import gc
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from perfscribe.base import one_line
from perfscribe.data import formats, synthetic, tokens
from perfscribe.data.digest_file import load_digest, verify
from perfscribe.data.generate import generate
from perfscribe.experiments.polaris.io_formats.reading import PerSample, Source, Whole

PARAMETERS = {"samples": 40, "source_length": 1, "target_length": 5, "features": 16, "seed": 3}
NAMES = list(formats.FORMATS)
PLAN = {"dataset": "small", "parameters": PARAMETERS, "formats": NAMES}


@pytest.fixture
def folder(tmp_path):
    generate(PLAN, tmp_path / "small")
    return tmp_path / "small"


def test_content_is_stable():
    assert synthetic.digest(synthetic.arrays(**PARAMETERS)) == "404844f5a9ade75a"  # numpy 2.4, x86-64; any other too
    assert synthetic.digest(synthetic.arrays(**PARAMETERS | {"seed": 4})) != "404844f5a9ade75a"


def test_hdf5_alone_is_read_sample_by_sample_as_in_the_homework(folder):
    """Only HDF5 is read sample by sample; tests/experiments/test_io.py compares what each format reads."""
    ways = {name: type(Source(name, folder, folder.parent / "small.digest").as_in_homework()) for name in NAMES}
    assert ways == {name: PerSample if name.startswith("hdf5") else Whole for name in NAMES}


def test_nothing_is_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return Path.touch, (tmp_path / "exploded",)

    objects = np.array([Bomb()], dtype=object)
    with (tmp_path / "bad.npz").open("wb") as stream:
        np.savez(stream, source=objects, target=objects)
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "source.npy", objects, allow_pickle=True)
    (tmp_path / "bad.pt").write_bytes(pickle.dumps({"source": Bomb()}))
    for name, path in {"npz": "bad.npz", "npz_compressed": "bad.npz", "npy": "npy", "pt": "bad.pt"}.items():
        for action in (formats.FORMATS[name].load, formats.FORMATS[name].open):
            with pytest.raises((ValueError, pickle.UnpicklingError, RuntimeError)):
                action(tmp_path / path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["npy", "npz"])
def test_a_failed_write_leaves_the_old_files_and_no_digest(name, folder, monkeypatch):
    save = formats.FORMATS[name].save

    def half(target, content):
        save(target, content)
        raise OSError(28, "No space left on device")

    digest = load_digest(folder.parent / "small.digest")
    monkeypatch.setitem(formats.FORMATS, name, replace(formats.FORMATS[name], save=half))
    with pytest.raises(OSError, match="No space left"):
        generate(PLAN | {"formats": [name]}, folder)
    verify(folder, digest, digest["files"])
    assert not [entry for entry in folder.iterdir() if entry.name.startswith(".")]
    assert not (folder.parent / "small.digest").exists()


def test_a_file_that_is_not_there_is_named(folder):
    """Damage: tests/experiments/test_io.py."""
    digest = load_digest(folder.parent / "small.digest")
    (folder / "hdf5_gzip.h5").unlink()
    with pytest.raises(ValueError, match=r"^small/hdf5_gzip\.h5: missing"):
        verify(folder, digest, digest["files"])
    verify(folder, digest, [name for name in digest["files"] if name != "hdf5_gzip.h5"])
    with pytest.raises(ValueError, match=r"small/other\.h5: not in the data set"):
        verify(folder, digest, ["other.h5"])


def test_token_batches_are_generated_read_and_shared(tmp_path):
    name = "tokens_16x4096"  # smaller batches read the same files
    assert name == tokens.dataset_name(4, 512) == tokens.dataset_name(2, 16)
    assert tokens.dataset_name(17, 5000) == "tokens_32x8192"
    first, other = (
        load_digest(generate({"dataset": name, "formats": [], **tokens.datasets([4], [512], seed)[name]}, folder))
        for seed, folder in ((3, tmp_path / name), (4, tmp_path / "other"))
    )
    assert other["arrays"] != first["arrays"]
    verify(tmp_path / name, first, first["files"])
    ids = tokens.read(tmp_path, 4, 512)
    assert ids.shape == (4, 513) and ids.dtype == np.int64 and ids.min() >= 0 and ids.max() < 10_000
    assert (tokens.read(tmp_path, 2, 16) == ids[:2, :17]).all()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writes beyond this size of a file, in bytes, fail, as on a full disk."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def test_a_write_that_falls_short_is_named_though_numpy_drops_the_reason(tmp_path) -> None:
    expected = r"^generate_data: a file: .* requested and .* written \(No space left on device\?\)$"
    with files_of_at_most(100_000), pytest.raises(SystemExit, match=expected), one_line.in_one_line("generate_data"):
        np.save(tmp_path / "a.npy", np.zeros(1_000_000))


@pytest.mark.parametrize("name", ["hdf5", "hdf5_gzip"])
def test_hdf5_is_as_h5py_writes_it_and_falls_short_without_its_tracebacks(name, tmp_path, capfd) -> None:
    arrays = synthetic.arrays(**PARAMETERS)
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        for array in arrays:
            file.create_dataset(array, data=arrays[array], compression="gzip" if name == "hdf5_gzip" else None)
    formats.write(name, arrays, tmp_path / "ours.h5")
    assert (tmp_path / "ours.h5").read_bytes() == (tmp_path / "plain.h5").read_bytes()
    with files_of_at_most(4096), pytest.raises(OSError, match="too large"):
        formats.write(name, arrays, tmp_path / "short.h5")
    gc.collect()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours.h5", "plain.h5"]
    assert capfd.readouterr() == ("", "")
