"""Runs Slurm jobs from submission to end: the executor plugin with another way of polling the queue.

The plugin waits for ever for a job that Slurm has forgotten (MinJobAge) or that its query omits, and stopping a run
waits for its next poll, up to three minutes. With PreemptMode CANCEL it waits for preempted jobs to be requeued, which
Slurm does only on request. And Slurm queues jobs for ever that a partition can never run.
"""

import asyncio
import atexit
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping, MutableMapping
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from perfscribe.base import commands
from perfscribe.run.processes import say

# Defaults that users set for their own commands: here they would show or cancel other jobs than this run's, and two
# make sbatch wait for its job or submit an array.
DEFAULTS = re.compile(r"(SQUEUE|SINFO|SACCT|SCANCEL|SCONTROL)_|SBATCH_(WAIT|ARRAY_INX)$")
LOOK_EVERY_S = 20.0  # longest interval; shorter after a submission or an end
STOP_CHECK_S = 0.2
ANSWER_S = 60.0
SILENT_LOOKS = 10  # polls without an answer before this is reported
# Files written by a node may appear late on the login node, and squeue may answer from a cache.
FORGOTTEN_S = 60.0
COMPLETED, PENDING, FORGOTTEN = "COMPLETED", "PENDING", "FORGOTTEN"
FAILED = ("BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "OUT_OF_MEMORY", "REVOKED", "TIMEOUT")
INTERRUPTED = ("NODE_FAIL", "PREEMPTED")  # final unless the job is requeued
# Normal reasons for pending; any other reason is printed once.
ORDINARY = ("None", "Priority", "Resources", "Dependency", "BeginTime", "Cleaning")

Known = Mapping[str, tuple[str, str]]


def prepare(variables: MutableMapping[str, str]) -> None:
    """Register the executor below as Snakemake's for Slurm; remove the user's defaults from these variables."""
    ExecutorPluginRegistry().get_plugin("slurm").executor = Executor
    for name in filter(DEFAULTS.match, list(variables)):
        del variables[name]
    if "SBATCH_CLUSTERS" in variables:  # rename: the other commands read SLURM_CLUSTERS
        variables["SLURM_CLUSTERS"] = variables.pop("SBATCH_CLUSTERS")


def files_as_they_are(paths: Iterable[str]) -> list[tuple[int, int] | None]:
    """Inode and mtime of each file, None for a missing one; a job that writes it changes them."""
    states: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            state = os.stat(path)
            states.append((state.st_ino, state.st_mtime_ns))
        except OSError:
            states.append(None)
    return states


class Executor(plugin.Executor):  # type: ignore[misc]
    """Submits like the plugin. A job that Slurm no longer knows is over; it succeeded if its outputs were written."""

    def __init__(self, workflow: Any, logger: Any) -> None:
        # Before the plugin's __init__, which starts the polling thread.
        self._before: dict[Any, list[tuple[int, int] | None]] = {}  # state of a job's outputs when submitted
        self._missed_since: dict[str, float] = {}
        self._reported: set[str] = set()
        self._silent_looks = 0
        self._pause_s = 0.0
        self._stopping = self._ended = False
        super().__init__(workflow, logger)
        atexit.register(self._cancel_unless_ended)  # a second Ctrl-C interrupts the first one's cancelling

    def run_job_pre(self, job: Any) -> None:
        """Remember the state of the job's outputs before submission."""
        self._before[job] = files_as_they_are(job.output)
        super().run_job_pre(job)

    def run_job(self, job: Any) -> None:
        """Submit the job unless the run is stopping."""
        if not self._stopping:
            super().run_job(job)
            self._pause_s = self._shortest_pause_s

    # --- looking

    @property
    def _shortest_pause_s(self) -> float:
        return min(LOOK_EVERY_S, float(self.workflow.executor_settings.init_seconds_before_status_checks))

    async def sleep(self) -> None:
        """Wait for the next poll or the end of the run."""
        began = time.monotonic()
        while self.wait and time.monotonic() - began < self._pause_s:
            await asyncio.sleep(STOP_CHECK_S)

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncIterator[Any]:
        """Report the jobs that are over; yield the others."""
        known = await asyncio.to_thread(self._ask) if active_jobs else {}
        left = [info for info in active_jobs if known is None or not self._is_over(info, known)]
        self._tell_why_jobs_wait(known or {})
        if left and len(left) == len(active_jobs):
            self._pause_s = min(LOOK_EVERY_S, 1.5 * self._pause_s)
        else:
            self._pause_s = self._shortest_pause_s
        for info in left:
            yield info

    def _ask(self) -> Known | None:
        """State and pending reason of each job of this run that Slurm knows; None if squeue does not answer."""
        asked = ("squeue", "--noheader", "--all", "--me", "--array", "--states=all")
        listing = commands.output(*asked, f"--name={self.run_uuid}", "--format=%i|%T|%r", timeout_s=ANSWER_S)
        self._silent_looks = self._silent_looks + 1 if listing is None else 0
        if self._silent_looks == SILENT_LOOKS:
            say("squeue does not answer; the run goes on when it does")
        if listing is None:
            return None
        rows = [line.split("|", 2) for line in listing.splitlines() if line.count("|") > 1]
        return {number: (state, reason) for number, state, reason in rows}

    def _is_over(self, info: Any, known: Known) -> bool:
        """Return whether the job is over, after reporting it."""
        state, _ = known.get(info.external_jobid, (FORGOTTEN, ""))
        if state != FORGOTTEN:
            self._missed_since.pop(info.external_jobid, None)
        if state == COMPLETED or (state == FORGOTTEN and self._has_made_all(info.job)):
            self.report_job_success(info)
            if not self.workflow.executor_settings.keep_successful_logs:
                with contextlib.suppress(OSError):
                    info.aux["slurm_logfile"].unlink()
            return True
        forgotten = state == FORGOTTEN and self._is_missed_for_long(info.external_jobid)
        if forgotten or state in FAILED or (state in INTERRUPTED and not self._queue_again(info.external_jobid)):
            what = "is no longer known and left no result" if forgotten else f"ended as {state}"
            message = f"Slurm's job {info.external_jobid} {what}. "
            self.report_job_error(info, msg=message, aux_logs=[str(info.aux["slurm_logfile"])])
            return True
        return False

    def _has_made_all(self, job: Any) -> bool:
        outputs = files_as_they_are(job.output)
        return all(now and now != before for now, before in zip(outputs, self._before[job], strict=True))

    def _is_missed_for_long(self, number: str) -> bool:
        return time.monotonic() - self._missed_since.setdefault(number, time.monotonic()) > FORGOTTEN_S

    def _queue_again(self, number: str) -> bool:
        return commands.output("scontrol", "requeue", number, timeout_s=ANSWER_S) is not None

    def _tell_why_jobs_wait(self, known: Known) -> None:
        """Print once why a job waits, if the reason is not a normal one."""
        by_reason: dict[str, list[str]] = {}
        for number, (state, reason) in known.items():
            if state == PENDING and reason not in ORDINARY and number not in self._reported:
                by_reason.setdefault(reason, []).append(number)
        for reason, numbers in by_reason.items():
            self._reported.update(numbers)
            say(f"jobs {', '.join(numbers)} wait: {reason}")

    # --- the end

    def shutdown(self) -> None:
        """End the run after all jobs."""
        super().shutdown()
        self._ended = True

    def cancel(self) -> None:
        """Stop the run and cancel its jobs, also those being submitted or polled."""
        self._stopping = True
        super().shutdown()
        self.cancel_jobs()
        self._ended = True

    def cancel_jobs(self, active_jobs: Iterable[Any] = ()) -> None:
        """Cancel all jobs of this run, including those unknown to Snakemake."""
        words = ("scancel", f"--name={self.run_uuid}")
        if commands.output(*words, timeout_s=ANSWER_S) is None:
            say(f"this run's jobs are not cancelled, as Slurm does not answer; later: {' '.join(words)}")
        else:
            say("this run's jobs are cancelled; finished cells are kept")

    def _cancel_unless_ended(self) -> None:
        if not self._ended:
            self.cancel_jobs()
