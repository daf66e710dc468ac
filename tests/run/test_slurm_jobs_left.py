"""Jobs of Slurm that are left when a run ends; by stand-ins of squeue and scancel. tests/slurm asks Slurm itself."""

from pathlib import Path

import pytest

from perfscribe.run.slurm_jobs import Keeper


def test_jobs_of_this_run_are_told_where_they_wait_in_vain_and_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    queue, told = tmp_path / "queue", tmp_path / "told"
    for name, text in {"squeue": f"cat {queue}", "scancel": f'echo "$@" >> {told}'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    earlier = f"1|None|{tmp_path}\n2|None|/elsewhere\n"
    queue.write_text(earlier)
    jobs = Keeper(tmp_path)
    jobs.start()
    limit = f"PartitionTimeLimit|{tmp_path}"
    queue.write_text(f"{earlier}3|Priority|{tmp_path}\n4|None|/elsewhere\n5|{limit}\n6|{limit}\n")
    jobs.look()
    jobs.look()
    assert capsys.readouterr().err == "jobs 5, 6 wait: PartitionTimeLimit\n", "once, and not who waits for a turn"
    jobs.stop()
    assert jobs.cancel() == ["3", "5", "6"] and told.read_text() == "3 5 6\n"
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
    assert told.read_text() == "3 5 6\n"
