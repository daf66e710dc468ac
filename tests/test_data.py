"""Synthetic data sets: their content, their formats, the digest file, and what happens to damaged ones."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from perfscribe.base import atomic
from perfscribe.data import formats, npz_members, samples, synthetic, tokens
from perfscribe.data.digest_file import load_digest, verify
from perfscribe.data.generate import generate
from perfscribe.data.layout import FILES, file_names, format_path, size_bytes

ROOT = Path(__file__).resolve().parents[1]
PARAMETERS = {"samples": 40, "source_length": 1, "target_length": 5, "features": 16, "seed": 3}
PLAN = {"unit": "data-small", "dataset": "small", "parameters": PARAMETERS, "formats": list(formats.FORMATS)}
NAMES = list(formats.FORMATS)


@pytest.fixture(scope="module")
def arrays():
    return synthetic.arrays(**PARAMETERS)


@pytest.fixture
def folder(tmp_path):
    generate(PLAN, tmp_path / "small")
    return tmp_path / "small"


def same_bits(left, right):
    return set(left) == set(right) and all(
        left[name].dtype == right[name].dtype and left[name].tobytes() == right[name].tobytes() for name in left
    )


def test_content_is_stable(arrays):
    assert arrays["source"].shape == (40, 1, 16)
    assert arrays["target"].shape == (40, 5, 16)
    assert all(array.dtype == np.float32 for array in arrays.values())
    assert synthetic.digest(arrays) == "404844f5a9ade75a"  # of numpy 2.4 on x86-64; no other may give another


def test_content_is_uniform_and_never_zero():
    values = np.concatenate([array.ravel() for array in synthetic.arrays(2048, 1, 20, 64, 0).values()])
    assert 0 < values.min() < 1e-5
    assert 1 - 1e-5 < values.max() <= 1
    assert abs(values.mean() - 0.5) < 1e-3
    assert abs(values.std() - 12**-0.5) < 1e-3


def test_seed_and_array_both_count(arrays):
    other = synthetic.arrays(**PARAMETERS | {"seed": 4})
    assert synthetic.digest(other) != synthetic.digest(arrays)
    assert not np.array_equal(arrays["source"][:, 0], arrays["target"][:, 0])


@pytest.mark.parametrize(
    "change",
    [
        lambda a: {**a, "source": a["source"].reshape(40, 16, 1)},
        lambda a: {**a, "source": a["source"].view(np.int32)},
        lambda a: {"source": a["target"], "target": a["source"]},
        lambda a: {**a, "source": np.nextafter(a["source"], np.float32(2))},
    ],
    ids=["shape", "dtype", "name", "last bit"],
)
def test_digest_sees(arrays, change):
    assert synthetic.digest(change(arrays)) != synthetic.digest(arrays)


def test_digest_ignores_order_stride_and_byte_order(arrays):
    shuffled = {name: np.asfortranarray(arrays[name]).astype(">f4") for name in reversed(arrays)}
    assert synthetic.digest(shuffled) == synthetic.digest(arrays)


@pytest.mark.parametrize("name", NAMES)
def test_whole_round_trip(name, arrays, tmp_path):
    path = tmp_path / format_path(tmp_path, name).name
    formats.write(name, arrays, path)
    assert same_bits(formats.FORMATS[name].load(path), arrays)
    assert size_bytes(path) > sum(array.nbytes for array in arrays.values()) * (0.7 if "z" in name else 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reader", [samples.whole, samples.per_sample, samples.as_in_homework])
def test_samples_are_the_arrays(name, reader, arrays, folder):
    dataset = reader(name, format_path(folder, name))
    assert len(dataset) == 40
    for index in range(40):
        source, target = dataset[index]
        assert source.numpy().tobytes() == arrays["source"][index].tobytes()
        assert target.numpy().tobytes() == arrays["target"][index].tobytes()
    dataset.close()


@pytest.mark.parametrize("name", NAMES)
def test_homework_reads_samples_from_hdf5_alone(name, folder):
    kind = type(samples.as_in_homework(name, format_path(folder, name)))
    assert kind is (samples.PerSample if name.startswith("hdf5") else samples.Whole)


@pytest.mark.parametrize("name", NAMES)
def test_a_read_sample_is_a_copy(name, folder):
    dataset = samples.per_sample(name, format_path(folder, name))
    before = dataset[7][1].clone()
    dataset[7][1].fill_(0)
    assert dataset[7][1].equal(before)
    dataset.close()


def test_decoded_bytes(arrays, folder):
    def decoded(name):
        return formats.FORMATS[name].decoded_bytes_per_sample(format_path(folder, name))

    sample_bytes = 4 * 16 * 6
    assert [decoded(name) for name in ("hdf5", "pt", "npz", "npy")] == [sample_bytes] * 4
    assert decoded("npz_compressed") == 40 * sample_bytes
    assert sample_bytes < decoded("hdf5_gzip") <= 2 * 40 * sample_bytes


def test_hdf5_is_chunked_only_where_it_is_compressed(folder):
    import h5py

    with h5py.File(format_path(folder, "hdf5_gzip")) as packed, h5py.File(format_path(folder, "hdf5")) as plain:
        assert packed["target"].compression == "gzip"
        assert packed["target"].chunks is not None
        assert plain["target"].chunks is None


def test_a_compressed_archive_is_not_mapped(folder):
    with pytest.raises(ValueError, match=r"source\.npy: compressed, cannot be mapped"):
        npz_members.memory_maps(format_path(folder, "npz_compressed"))


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


@pytest.mark.parametrize("name", NAMES)
def test_a_failed_write_leaves_the_old_files(name, arrays, folder, monkeypatch):
    path = format_path(folder, name)
    kind = type(formats.FORMATS[name])
    save = kind.save

    def half(self, target, content):
        save(self, target, content)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kind, "save", half)
    with pytest.raises(OSError, match="No space left"):
        formats.write(name, {key: value * 2 for key, value in arrays.items()}, path)
    assert same_bits(formats.FORMATS[name].load(path), arrays)
    assert not [entry for entry in folder.iterdir() if entry.name.startswith(".")]


def test_a_folder_is_replaced_whole(tmp_path):
    for names in (["a", "b"], ["c"]):
        with atomic.replacing(tmp_path / "set") as temporary:
            temporary.mkdir()
            for name in names:
                (temporary / name).write_text(name)
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["c"]
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_digest_file(folder, arrays):
    path = folder.parent / "small.digest"
    digest = load_digest(path)
    assert digest["arrays"] == synthetic.digest(arrays)
    assert digest["parameters"] == PARAMETERS
    assert digest["raw_bytes"] == sum(array.nbytes for array in arrays.values())
    assert list(digest["files"]) == file_names(NAMES)
    verify(folder, digest)
    before = path.read_bytes()
    generate(PLAN, folder)
    assert path.read_bytes() == before


def test_without_its_digest_a_data_set_is_not_complete(folder, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(formats, "write", fail)
    with pytest.raises(OSError, match="No space left"):
        generate(PLAN, folder)
    assert not (folder.parent / "small.digest").exists()


@pytest.mark.parametrize("file", file_names(NAMES))
def test_damage_is_named(file, folder):
    digest = load_digest(folder.parent / "small.digest")
    path = folder / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^small/{file}: damaged") as caught:
        verify(folder, digest)
    assert "\n" not in str(caught.value)
    verify(folder, digest, [name for name in digest["files"] if name != file])
    path.unlink()
    with pytest.raises(ValueError, match=rf"^small/{file}: missing"):
        verify(folder, digest)


def test_a_format_that_was_not_generated_is_named(folder):
    with pytest.raises(ValueError, match=r"small/other\.h5: not in the data set"):
        verify(folder, load_digest(folder.parent / "small.digest"), ["other.h5"])


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"dataset": "small"}'])
def test_a_bad_digest_file_is_one_line(text, tmp_path):
    path = tmp_path / "small.digest"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=r"^small\.digest: ") as caught:
        load_digest(path)
    assert "\n" not in str(caught.value)


def test_unknown_format():
    with pytest.raises(ValueError, match="'csv': expected one of memory, hdf5_gzip"):
        file_names(["csv"])
    assert set(FILES) == {"memory", *formats.FORMATS}


def run_script(plan, folder):
    command = [sys.executable, str(ROOT / "workflow/scripts/generate_data.py"), "--plan", plan, "--folder", folder]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder.parent)


def test_script(tmp_path):
    plan = tmp_path / "data-small.json"
    plan.write_text(json.dumps(PLAN | {"formats": ["npy", "npz"], "fingerprint": "0123456789abcdef"}))
    result = run_script(plan, tmp_path / "small")
    assert result.returncode == 0, result.stderr
    digest = load_digest(tmp_path / "small.digest")
    verify(tmp_path / "small", digest)
    assert list(digest["files"]) == ["npy/source.npy", "npy/target.npy", "npz.npz"]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("{", "cannot be read as JSON"),
        ('{"dataset": "small"}', "parameters, formats missing"),
        (json.dumps(PLAN | {"formats": ["csv"]}), "'csv': expected one of"),
        (json.dumps(PLAN | {"parameters": {"samples": 4}}), "missing 4 required positional arguments"),
    ],
)
def test_script_says_what_is_wrong_in_one_line(plan, message, tmp_path):
    (tmp_path / "plan.json").write_text(plan)
    result = run_script(tmp_path / "plan.json", tmp_path / "small")
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "small.digest").exists()


# --- token batches ------------------------------------------------------------------------------------------------


def token_plan(batch, context, seed=3):
    [(name, dataset)] = tokens.datasets(batch, [context], 1000, seed).items()
    return {"dataset": name, "formats": [], **dataset}


def test_token_batches_are_generated_read_and_shared(tmp_path):
    plan = token_plan(4, 512)
    assert plan["dataset"] == tokens.dataset_name(2, 16) == "tokens_16x4096", "smaller batches read the same files"
    digest = load_digest(generate(plan, tmp_path / plan["dataset"]))
    verify(tmp_path / plan["dataset"], digest)
    ids = tokens.read(tmp_path, 4, 512)
    assert ids.shape == (4, 513) and ids.dtype == np.int64 and ids.min() == 0 and ids.max() == 999
    assert (tokens.read(tmp_path, 2, 16) == ids[:2, :17]).all()
    other = load_digest(generate(token_plan(4, 512, seed=4), tmp_path / "other"))
    assert other["arrays"] != digest["arrays"]


def test_larger_batches_have_a_data_set_of_their_own(tmp_path):
    assert tokens.dataset_name(17, 5000) == "tokens_32x8192"
    plan = token_plan(17, 5000)
    assert (plan["parameters"]["sequences"], plan["parameters"]["length"]) == (32, 8193)
    small = token_plan(4, 512)
    generate({**small, "parameters": small["parameters"] | {"sequences": 2}}, tmp_path / small["dataset"])
    with pytest.raises(ValueError, match=r"tokens\.npy holds \(2, 4097\), asked for \(4, 513\)"):
        tokens.read(tmp_path, 4, 512)


def test_an_unknown_kind_of_data_set_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="kind: 'images': expected one of samples, tokens"):
        generate(token_plan(4, 512) | {"kind": "images"}, tmp_path / "x")
