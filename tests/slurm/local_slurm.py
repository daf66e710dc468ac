"""A real Slurm on one Debian machine, for tests: each node a network name space with a host name of its own.

The "login node" is this machine. Root is needed, and Debian's packages. Nothing listens on the machine's own
interfaces, nothing is written outside of one temporary folder, and clusters of several processes do not meet.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sessions

from perfscribe.base import processes

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "ip")
PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
AS_ROOT = {**os.environ, "PATH": PATH}
# Of a job that this process may be part of, and of a user's defaults: nothing may reach the daemons.
FOREIGN = re.compile(r"(SLURM|SBATCH|SRUN|SALLOC|SQUEUE|SINFO|SACCT|PMIX?)_")
START_S, STOP_S = 180.0, 5.0
wait_for = functools.partial(sessions.wait_for, every_s=0.2)  # what asks Slurm takes its time
UNDER_WAY = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
# Inside a node: its own host name, /sys/class/net, /dev/shm, host names and Slurm configuration. $1: the node.
ENTER = """
set -e
hostname "$1"
mount --make-rprivate /
mkdir -p "$2/cgroup"
mount --rbind /sys/fs/cgroup "$2/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$2/cgroup" /sys/fs/cgroup
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind "$2/hosts" /etc/hosts
mkdir -p /etc/slurm
mount --bind "$2" /etc/slurm
shift 2
exec "$@"
"""


def _run(*command: str, check: bool = True, env: Mapping[str, str] = AS_ROOT, timeout_s: float = 300) -> str:
    """Return the command's output, standard error included; if it fails, raise RuntimeError with it, or return ""."""
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env=env, text=True, errors="replace", timeout=timeout_s, **streams)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout.strip()}")
    return "" if done.returncode else done.stdout.strip()


def lacking() -> str:
    """Why this machine cannot have the cluster; "" where it can."""
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        return "snakemake-executor-plugin-slurm is not installed"
    if os.geteuid() != 0:
        return "a cluster in network name spaces needs root"
    if missing := [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]:
        return f"there is no {', '.join(missing)}; docs/cluster.md names the packages"
    return "" if subprocess.run(["unshare", "--net", "true"]).returncode == 0 else "there are no network name spaces"


class LocalSlurm:
    """The cluster: nodes node1, node2 and `ctl`, where slurmctld sits. Use it as a context."""

    def __init__(self, cpus: int = 4, more_conf: str = "") -> None:
        self.nodes = ["node1", "node2"]
        self.cpus, self.more_conf = cpus, more_conf
        self.name = f"ps{secrets.token_hex(3)}"  # device names have 15 letters at most
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._claim = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> LocalSlurm:
        # Paths of Unix sockets are short.
        self.folder = Path(tempfile.mkdtemp(prefix="ps-slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.etc, self.logs = self.folder / "etc", self.folder / "log"
        for folder in (self.etc, self.logs, self.folder / "state"):
            folder.mkdir()
        try:
            self._up()
        except BaseException:
            for log in sorted(self.logs.glob("*")):
                print(f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-8:], sep="\n", file=sys.stderr)
            self.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def environment(self) -> dict[str, str]:
        """Variables for a user's commands on the login node."""
        own = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
        return {**own, "SLURM_CONF": str(self.etc / "slurm.conf")}

    # --- what a user and an administrator do

    def ask(self, *command: str, timeout_s: float = 120) -> str:
        """Return the output of one of Slurm's commands."""
        return _run(*command, check=False, env=self.environment(), timeout_s=timeout_s)

    def batch(self, *words: str, timeout_s: float, **variables: str) -> int:
        """Exit status of `sbatch --wait`, which itself looks ever more seldom whether the job has ended."""
        job = _run("sbatch", "--parsable", *words, env={**self.environment(), **variables})
        wait_for(lambda: self.jobs()[job][0] not in UNDER_WAY, timeout_s, f"{job} to end")
        (status,) = re.findall(r" ExitCode=(\d+):", self.ask("scontrol", "show", "job", job))
        return int(status)

    def jobs(self) -> dict[str, tuple[str, str]]:
        """State and node list of every job that slurmctld still knows, by its number."""
        lines = self.ask("squeue", "--noheader", "--states=all", "--format=%i|%T|%N").splitlines()
        return {line.split("|")[0]: (line.split("|")[1], line.split("|")[2]) for line in lines if line.count("|") == 2}

    def node_states(self) -> dict[str, str]:
        """State of each node by its name."""
        lines = self.ask("sinfo", "--noheader", "-N", "--format=%N %T").splitlines()
        return {line.split()[0]: line.split()[1] for line in lines if len(line.split()) == 2}

    def fail(self, node: str) -> None:
        """Take the node down with all that runs on it, at once: a power cut."""
        self._kill_all(node)
        self._end(f"slurmd-{node}")

    def down(self) -> None:
        """Stop everything and leave nothing behind."""
        for node in ("ctl", *self.nodes):
            self._kill_all(node)
        for name in list(self._processes):
            self._end(name)
        for node in ("ctl", *self.nodes):
            _run("ip", "netns", "del", f"{self.name}-{node}", check=False)
        _run("ip", "link", "del", f"{self.name}br", check=False)
        self._claim.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- how it comes up

    def _up(self) -> None:
        self._network()
        self._configure()
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (self.folder / "munge.key").chmod(0o400)
        own = {f"--{kind}-file={self.folder}/munge.{kind}" for kind in ("key", "log", "pid", "seed")}
        self._start("munged", "munged", "-F", "--force", f"--socket={self.folder}/munge", *sorted(own))
        wait_for((self.folder / "munge").exists, START_S, "munged")
        self._start("slurmctld", "slurmctld", "-D", node="ctl")
        wait_for(lambda: "UP" in self.ask("scontrol", "ping"), START_S, "slurmctld")
        for node in self.nodes:
            self._start_node(node)
        wait_for(self._is_ready, START_S, "nodes that take jobs")

    def _is_ready(self) -> bool:
        states = self.node_states()
        return set(states) == set(self.nodes) and set(states.values()) <= {"idle", "mixed", "allocated", "completing"}

    def _network(self) -> None:
        self._net = self._own_net()
        bridge = f"{self.name}br"
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "link", "set", bridge, "up")
        _run("ip", "addr", "add", f"{self._net}.1/24", "dev", bridge)
        for number, node in enumerate(("ctl", *self.nodes)):
            space, cable = f"{self.name}-{node}", f"{self.name}v{number}"
            _run("ip", "netns", "add", space)
            _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "link", "set", cable, "master", bridge, "up")
            for device in ("lo", "eth0"):
                _run("ip", "-n", space, "link", "set", device, "up")
            _run("ip", "-n", space, "addr", "add", f"{self._address(node)}/24", "dev", "eth0")

    def _own_net(self) -> str:
        """The first three numbers of addresses that no other cluster has, nor takes while this one is up."""
        used = _run("ip", "-o", "addr")
        for number in range(1, 255):
            net = f"10.214.{number}"
            with contextlib.suppress(OSError):
                self._claim.bind(f"\0{net}")  # an abstract name, which the kernel frees with this process
                if f"{net}." not in used:
                    return net
                self._claim.close()
                self._claim = socket.socket(socket.AF_UNIX)
        raise RuntimeError("no net of 10.214.0.0/16 is free")

    def _address(self, node: str) -> str:
        return f"{self._net}.{2 if node == 'ctl' else 9 + int(node.removeprefix('node'))}"

    def _configure(self) -> None:
        own_name = os.uname().nodename
        lines = [f"{self._net}.1 {own_name}", *(f"{self._address(node)} {node}" for node in ("ctl", *self.nodes))]
        (self.etc / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
        nodes = [
            f"NodeName={node} NodeAddr={self._address(node)} CPUs={self.cpus} CoresPerSocket={self.cpus} Sockets=1"
            f" ThreadsPerCore=1 RealMemory=8192"
            for node in self.nodes
        ]
        text = CONF.format(name=self.name, folder=self.folder, address=self._address("ctl"))
        more = [*nodes, PARTITION, self.more_conf]
        (self.etc / "slurm.conf").write_text("\n".join([text, *more]) + "\n")
        (self.etc / "cgroup.conf").write_text("CgroupAutomount=no\n")

    def _start_node(self, node: str) -> None:
        (self.folder / node).mkdir(exist_ok=True)
        self._start(f"slurmd-{node}", "slurmd", "-D", "-N", node, node=node)

    def _start(self, name: str, *command: str, node: str = "") -> None:
        inside = ["nsenter", f"--net=/run/netns/{self.name}-{node}", "unshare", "--uts", "--mount", "sh", "-c", ENTER]
        words = [*inside, "sh", node, str(self.etc), *command] if node else list(command)
        with (self.logs / name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                words,
                env={**self.environment(), "PATH": PATH},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=functools.partial(processes.die_with, os.getpid()),
            )

    def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _kill_all(self, node: str) -> None:
        """Kill what runs in the node's name space, slurmd first, so that nothing reports its end."""
        for _ in range(20):
            pids = _run("ip", "netns", "pids", f"{self.name}-{node}", check=False).split()
            if not pids:
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(int(pid), signal.SIGKILL)
            process = self._processes.get(f"slurmd-{node}")
            if process is not None:
                process.poll()
            time.sleep(0.1)


@contextlib.contextmanager
def cluster(**more: object) -> Iterator[LocalSlurm]:
    """A cluster of two nodes, down when left.

    The test is skipped where this machine cannot have one; where REQUIRE names slurm, it runs or fails.
    """
    if reason := lacking():
        (pytest.fail if "slurm" in os.environ.get("REQUIRE", "").split(",") else pytest.skip)(reason)
    with LocalSlurm(**more) as up:  # type: ignore[arg-type]
        yield up


CONF = """\
ClusterName={name}
SlurmctldHost=ctl({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
SlurmdParameters=config_overrides
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=512
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=5,batch_sched_delay=0
EnforcePartLimits=ALL
ReturnToService=2
MinJobAge=86400
KillWait=5
SlurmdTimeout=10
SlurmctldTimeout=30
UnkillableStepTimeout=30
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none"""
PARTITION = "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
