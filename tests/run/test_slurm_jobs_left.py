"""Jobs of Slurm that are left when a run ends; by stand-ins of squeue and scancel. tests/slurm asks Slurm itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscribe.run.slurm_jobs import Keeper


def test_jobs_that_this_run_has_submitted_are_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, told = tmp_path / "queue", tmp_path / "told"
    for name, text in {"squeue": f"cat {queue}", "scancel": f'echo "$@" >> {told}'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    earlier = f"1|{tmp_path}\n2|/elsewhere\n"
    queue.write_text(earlier)
    jobs = Keeper(tmp_path)
    jobs.start()
    queue.write_text(f"{earlier}3|{tmp_path}\n4|/elsewhere\n5|{tmp_path}\n")
    jobs.stop()
    assert jobs.cancel() == ["3", "5"] and told.read_text() == "3 5\n"
    (tmp_path / "scancel").write_text("#!/bin/sh\nexit 1\n")
    assert jobs.cancel() == [], "refused, so not told as cancelled"
    queue.write_text(earlier)
    assert jobs.cancel() == []
    queue.unlink()
    mute = Keeper(tmp_path)
    mute.start()
    mute.stop()
    queue.write_text(earlier)
    assert mute.cancel() == [], "which jobs are of earlier runs is not known"
    assert told.read_text() == "3 5\n"
