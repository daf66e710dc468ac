"""Identity of a machine and versions of its libraries."""

import json
import re
import sys

from perfscribe.base import cpu_sets, files
from perfscribe.records import libraries, machine, scrub


def test_identity_of_recorded_machine(h200, monkeypatch):
    monkeypatch.setattr(cpu_sets, "granted", lambda: (0, 3, 5, 7, 9))  # those that the job was given
    found = machine.identity(["torch", "os", "perfscribe", "no_such_library"])
    assert found["gpu_model"] == "NVIDIA H200" and found["gpu_count"] == 2
    assert found["gpu_memory_bytes"] == 143771 * 2**20 and found["gpu_power_limit_w"] == 700
    assert found["driver_version"] == "580.159.04" and found["cuda_driver_version"] == "13.0"
    assert found["cpu_cores"] == 5
    assert found["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert set(found["libraries"]) == {"torch", "no_such_library"} and found["libraries"]["no_such_library"] is None


def test_identity_id_ignores_order_and_sees_every_value(h200):
    found = machine.identity(["torch"])
    key = machine.identity_id(found)
    assert machine.identity_id(json.loads(json.dumps(dict(reversed(found.items()))))) == key  # as a journal gives it
    h200.gpus[1].power_limit_mw = 500_000
    assert machine.identity_id(machine.identity(["torch"])) != key
    assert machine.identity_id({"a": 1}) == "015abd7f5cc5"  # fixed: journals of other machines rely on it


def test_the_processor_has_one_name_whatever_the_language(tmp_path, monkeypatch):
    """On Arm the name is lscpu's, which says `Modellname` to who reads German."""
    lscpu = tmp_path / "lscpu"
    lscpu.write_text('#!/bin/sh\n[ "$LC_ALL" = C ] && echo "Model name: Grace" || echo "Modellname: Grace"\n')
    lscpu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "no cpuinfo")
    assert machine.cpu_model.__wrapped__() == "Grace"


def test_a_virtual_machine_is_one_by_its_processor_or_its_firmware(tmp_path):
    cpuinfo, dmi = tmp_path / "cpuinfo", tmp_path / "dmi"
    cpuinfo.write_text("flags\t\t: fpu hypervisor_x sse\nbugs\t: none hypervisor\n")
    assert not machine.is_virtual(cpuinfo, dmi)
    dmi.mkdir()
    (dmi / "sys_vendor").write_text("QEMU\n")
    assert machine.is_virtual(cpuinfo, dmi)
    cpuinfo.write_text("flags\t\t: fpu hypervisor sse\n")
    assert machine.is_virtual(cpuinfo, tmp_path / "none")


def test_local_version_part_comes_from_the_source(tmp_path, monkeypatch):
    """PyPI's wheels of torch give 2.11.0 as metadata and 2.11.0+cu130 in torch/version.py."""
    package = tmp_path / "localpart"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (package / "version.py").write_text("__version__ = '2.11.0+cu130'\ncuda: str | None = '13.0'\n")
    files.write_text(tmp_path / "localpart-2.11.0.dist-info" / "METADATA", "Name: localpart\nVersion: 2.11.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert libraries.version("localpart") == "2.11.0+cu130"
    assert libraries.constants("localpart")["cuda"] == "13.0"


def test_a_boot_is_a_digest_that_may_be_published(tmp_path):
    file = tmp_path / "boot_id"
    assert machine.boot(file) is None  # not Linux
    boots = []
    for text in ("a479e7bc-d8a9-45ce-a28e-04ddf41e6661\n", "b479e7bc-d8a9-45ce-a28e-04ddf41e6661\n"):
        file.write_text(text)
        boots.append(machine.boot(file))
    assert all(re.fullmatch("[0-9a-f]{12}", boot) for boot in boots) and boots[0] != boots[1]
    assert scrub.scrub_json({"boot": boots[0]}, scrub.private_here(tmp_path)) == {"boot": boots[0]}
