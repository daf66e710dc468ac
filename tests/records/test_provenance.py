"""Provenance: commit, variables, clocks."""

import json
import subprocess

from perfscribe.records import checkout, machine, provenance


def git(root, *arguments):
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, "-C", str(root), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_provenance_of_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFSCRIBE_COMMIT", "not asked where git answers")
    git(tmp_path, "init", "-q")
    (tmp_path / "perfscribe").mkdir()
    for name in ("perfscribe/a.py", "config.yaml"):
        (tmp_path / name).write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    found = provenance.collect(tmp_path)
    assert found["commit"] == git(tmp_path, "rev-parse", "HEAD") and found["dirty"] is False
    for name in ("config.yaml", "notes.txt"):  # neither settings nor what lies beside is code
        (tmp_path / name).write_text("2")
        assert provenance.collect(tmp_path)["dirty"] is False
    (tmp_path / "perfscribe" / "b.py").write_text("new")
    assert provenance.collect(tmp_path)["dirty"] is True
    (tmp_path / "perfscribe" / "b.py").unlink()
    (tmp_path / "perfscribe" / "a.py").write_text("2")
    assert provenance.collect(tmp_path)["dirty"] is True


def test_git_is_asked_about_this_checkout_alone(tmp_path, monkeypatch):
    """Whatever variables a hook or an alias of git leaves; where it says nothing, that is told with the remedy."""
    here, other = tmp_path / "here", tmp_path / "other"
    for root in (here, other):
        root.mkdir()
        git(root, "init", "-q")
        git(root, "commit", "-q", "--allow-empty", "-m", root.name)
    head = git(here, "rev-parse", "HEAD")
    named = {"GIT_DIR": other / ".git", "GIT_WORK_TREE": other, "GIT_INDEX_FILE": other / "i", "GIT_COMMON_DIR": other}
    for name, path in named.items():
        monkeypatch.setenv(name, str(path))
    assert checkout.commit(here) == (head, False) and not checkout.why_no_commit(here)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert checkout.commit(here)[0] is None
    why = checkout.why_no_commit(here)
    assert f"git config --global --add safe.directory {here}" in why and "PERFSCRIBE_COMMIT" in why
    assert not checkout.why_no_commit(tmp_path)  # a copy without .git
    monkeypatch.setenv("PERFSCRIBE_COMMIT", head)
    assert checkout.commit(here) == (head, None) and not checkout.why_no_commit(here)


def test_provenance_variables_and_json(h200, tmp_path, monkeypatch):
    kept = {"NCCL_NVLS_ENABLE", "PYTORCH_CUDA_ALLOC_CONF", "OMP_NUM_THREADS", "TORCHINDUCTOR_CACHE_DIR"}
    for name, value in {**dict.fromkeys(kept, "x"), "MY_NCCL_TOKEN": "secret", "SLURM_JOB_ID": "4711"}.items():
        monkeypatch.setenv(name, value)
    found = provenance.collect(tmp_path)
    assert kept <= set(found["variables"])
    assert "MY_NCCL_TOKEN" not in found["variables"] and found["slurm_job_id"] == "4711"
    assert found["gpu_clocks_mhz"] == [{"sm": 1980, "memory": 3201, "sm_max": 1980}] * 2
    assert json.loads(json.dumps(found))["boot"] == machine.boot()
