"""CPU binding: lists, masks, nearness; cores nearest to GPUs; the files and options that tell a launcher."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscribe.distributed import binding, launchers
from perfscribe.show import references

HOMEWORK = [(0, 1), (8, 9), (16, 17), (24, 25)]
CORES = st.sets(st.integers(0, 255), min_size=1).map(lambda cores: tuple(sorted(cores)))


@pytest.mark.parametrize(
    "text", ["--cpu-bind verbose,list:0-1:8,9:16,17:24,25", "--cpu-bind=mask_cpu:0x3,0x300,0x30000,0x3000000"]
)
def test_bindings_in_all_their_forms(text):
    assert binding.parse_cpu_bind(text) == HOMEWORK
    assert binding.parse_cpu_bind("map_cpu:24,16,8,0") == binding.parse_cpu_bind("list:24:16:8:0")


def test_expected_masks_are_those_that_the_write_up_prints():
    published = references.load("rank_methods")
    masks, cores = (references.find(published, name) for name in ("cpu_mask", "cpu_cores"))
    assert [binding.mask(cores) for cores in HOMEWORK] == [one.text for one in masks]
    assert [binding.shown(cores) for cores in HOMEWORK] == [one.text for one in cores]


@given(st.lists(CORES, min_size=1, max_size=8))
def test_masks_and_lists_lose_nothing(bindings):
    assert [binding.cores_of_mask(binding.mask(cores)) for cores in bindings] == bindings
    assert binding.parse_cpu_bind(binding.as_list(bindings)) == bindings
    assert binding.parse_cpu_bind("list:" + ":".join(map(binding.shown, bindings))) == bindings


@given(CORES, st.integers(1, 64))
def test_cores_are_dealt_out_evenly(cores, ranks):
    dealt = binding.even(cores, ranks)
    sizes = {len(one) for one in dealt}
    assert len(dealt) == ranks and min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
    if len(cores) >= ranks:
        assert sum(dealt, ()) == cores
    else:
        assert {core for one in dealt for core in one} == set(cores)


def topology(folder, packages, siblings):
    """A machine's cores as the kernel describes them: lists of core numbers by package and by core."""
    for core in sorted(core for package in packages for core in package):
        place = folder / f"cpu{core}" / "topology"
        place.mkdir(parents=True)
        for name, groups in (("package_cpus_list", packages), ("core_cpus_list", siblings)):
            mine = next(group for group in groups if core in group)
            (place / name).write_text(",".join(map(str, mine)) + "\n")


def test_hwlocs_numbers_of_two_threads_a_core_on_two_packages(tmp_path):
    """hwloc counts the threads of a core one after the other, the kernel first threads of all cores first."""
    topology(tmp_path, [[0, 1, 4, 5], [2, 3, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]])
    (tmp_path / "cpufreq").mkdir()
    (tmp_path / "cpu8").mkdir()  # switched off
    nowhere = tmp_path / "none"
    assert binding.logical_numbers(tmp_path, nowhere) == {0: 0, 4: 1, 1: 2, 5: 3, 2: 4, 6: 5, 3: 6, 7: 7}
    (tmp_path / "allowed").write_text("1-2,5\n")
    assert binding.logical_numbers(tmp_path, tmp_path / "allowed") == {1: 0, 5: 1, 2: 2}
    assert binding.logical_numbers(nowhere) == {}


# --- launchers --------------------------------------------------------------------------------------------------

VERSIONS = {
    "open_mpi": "mpiexec (Open MPI) 5.0.11",
    "mpich": "HYDRA build details:\n    Version: 5.0.2",
    "pals": "PALS version 1.2.12",
}


@pytest.fixture
def no_launchers(monkeypatch, tmp_path):
    """A machine without any; what is put into the folder given back is on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launchers.sys, "executable", str(tmp_path / "python"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for cached in (launchers.mpiexecs, launchers._version):
        cached.cache_clear()
    yield tmp_path
    for cached in (launchers.mpiexecs, launchers._version):
        cached.cache_clear()


def install(folder, name, text):
    (folder / name).write_text(f"#!/bin/sh\nwhile read -r line; do echo \"$line\"; done <<'END'\n{text}\nEND\n")
    (folder / name).chmod(0o755)


def test_how_each_launcher_is_told_of_a_binding(no_launchers, monkeypatch):
    for kind, name in (("open_mpi", "mpiexec"), ("mpich", "mpiexec.hydra"), ("pals", "mpirun")):
        install(no_launchers, name, VERSIONS[kind])
    install(no_launchers, "srun", "")
    monkeypatch.setenv("SLURM_JOB_ID", "1")

    def told(launcher):
        return " ".join(launchers.bound(launcher, HOMEWORK, str(no_launchers)))

    assert "--cpu-bind list:0,1:8,9:16,17:24,25 " in told("pals") and "-ppn 4" in told("pals")
    assert "--cpu-bind=mask_cpu:0x3,0x300,0x30000,0x3000000 " in told("slurm") and "-N1 -n4" in told("slurm")
    assert "-bind-to user:0+1,8+9,16+17,24+25 " in told("mpich")
    assert f"rankfile:file={no_launchers}/rankfile.txt" in told("open_mpi")
    assert len((no_launchers / "rankfile.txt").read_text().splitlines()) == 4
    for version in ("mpirun (Open MPI) 4.1.6", "mpiexec (OpenRTE) 4.1.6"):
        install(no_launchers, "mpiexec", version)
        launchers._version.cache_clear()
        assert f"--rankfile {no_launchers}/rankfile.txt --oversubscribe --use-hwthread-cpus" in told("open_mpi")
