"""CPU binding: lists, masks, nearness; cores nearest to GPUs; the files and options that tell a launcher."""

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from perfscribe.base import cpu_sets
from perfscribe.distributed import binding, launchers
from perfscribe.show import references

HOMEWORK = [(0, 1), (8, 9), (16, 17), (24, 25)]


def test_bindings_in_all_their_forms_and_masks_as_the_write_up_prints_them():
    for text in ("--cpu-bind verbose,list:0-1:8,9:16,17:24,25", "--cpu-bind=mask_cpu:0x3,0x300,0x30000,0x3000000"):
        assert binding.parse_cpu_bind(text) == HOMEWORK
    assert binding.parse_cpu_bind("map_cpu:24,16,8,0") == binding.parse_cpu_bind("list:24:16:8:0")
    masks, cores = (references.find("rank_methods", name) for name in ("cpu_mask", "cpu_cores"))
    assert [cpu_sets.mask(cores) for cores in HOMEWORK] == [one.text for one in masks]
    assert [cpu_sets.shown(cores) for cores in HOMEWORK] == [one.text for one in cores]


@given(st.sets(st.integers(0, 255), min_size=1).map(lambda cores: tuple(sorted(cores))), st.integers(1, 64))
def test_cores_are_dealt_out_evenly(cores, ranks):
    dealt = cpu_sets.even(cores, ranks)
    sizes = {len(one) for one in dealt}
    assert len(dealt) == ranks and min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
    if len(cores) >= ranks:
        assert sum(dealt, ()) == cores
    else:
        assert {core for one in dealt for core in one} == set(cores)


def written(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_hwlocs_numbers_of_two_threads_a_core_on_two_packages(tmp_path):
    """hwloc counts the threads of a core one after the other, the kernel first threads of all cores first."""
    cpus, groups = tmp_path / "sys/devices/system/cpu", tmp_path / "sys/fs/cgroup"
    assert binding.logical_numbers(tmp_path) == {}
    for core in range(8):  # lists of core numbers by package and by core, as the kernel has them
        written(cpus / f"cpu{core}/topology/package_cpus_list", "0,1,4,5\n" if core % 4 < 2 else "2,3,6,7\n")
        written(cpus / f"cpu{core}/topology/core_cpus_list", f"{core % 4},{core % 4 + 4}\n")
    (cpus / "cpufreq").mkdir()
    (cpus / "cpu8").mkdir()  # switched off
    every = {0: 0, 4: 1, 1: 2, 5: 3, 2: 4, 6: 5, 3: 6, 7: 7}
    assert binding.logical_numbers(tmp_path) == every
    written(tmp_path / "proc/self/cgroup", "0::/slurm/job_7/step_0\n")
    written(groups / "cpuset.cpus.effective", "0-7\n")  # of the node
    assert binding.logical_numbers(tmp_path) == every
    written(groups / "slurm/job_7/cpuset.cpus.effective", "1-2,5\n")  # of the job
    assert binding.logical_numbers(tmp_path) == {1: 0, 5: 1, 2: 2}
    written(tmp_path / "proc/self/cgroup", "3:memory:/slurm\n2:cpuset:/job\n0::/slurm/job_7\n")
    written(groups / "cpuset/job/cpuset.cpus", "3,7\n")  # version 1 of control groups
    assert binding.logical_numbers(tmp_path) == {3: 0, 7: 1}


VERSIONS = {
    "mpiexec": "mpiexec (Open MPI) 5.0.11",
    "mpiexec.hydra": "HYDRA build details:\n    Version: 5.0.2",
    "mpirun": "PALS version 1.2.12",
    "srun": "",
}


def install(folder, name, text):
    (folder / name).write_text(f"#!/bin/sh\nwhile read -r line; do echo \"$line\"; done <<'END'\n{text}\nEND\n")
    (folder / name).chmod(0o755)


def test_how_each_launcher_is_told_of_a_binding(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # where there are no launchers but these
    monkeypatch.setattr(launchers.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    for cached in ("mpiexecs", "_version"):
        monkeypatch.setattr(launchers, cached, cache(getattr(launchers, cached).__wrapped__))
    for name, version in VERSIONS.items():
        install(tmp_path, name, version)

    def told(launcher):
        return " ".join(launchers.bound(launcher, HOMEWORK, str(tmp_path)))

    with monkeypatch.context() as unknown:  # numbers of hwloc, where the machine does not tell them
        unknown.setattr(binding, "logical_numbers", dict)
        assert binding.rankfile([range(64), (64, 66)], "a") == "rank 0=a slot=0-63\nrank 1=a slot=64,66\n"
    assert "--cpu-bind list:0,1:8,9:16,17:24,25 " in told("pals") and "-ppn 4" in told("pals")
    assert "--cpu-bind=mask_cpu:0x3,0x300,0x30000,0x3000000 " in told("slurm") and "-N1 -n4" in told("slurm")
    assert "-bind-to user:0+1,8+9,16+17,24+25 " in told("mpich")
    assert f"rankfile:file={tmp_path}/rankfile.txt" in told("open_mpi")
    assert len((tmp_path / "rankfile.txt").read_text().splitlines()) == 4
    for version in ("mpirun (Open MPI) 4.1.6", "mpiexec (OpenRTE) 4.1.6"):
        install(tmp_path, "mpiexec", version)
        launchers._version.cache_clear()
        assert f"--rankfile {tmp_path}/rankfile.txt --oversubscribe --use-hwthread-cpus" in told("open_mpi")
