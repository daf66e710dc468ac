"""Commit of a checkout, and git's other answers about it."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from perfscribe.base.commands import output

# Code, relative to the checkout: only changes here make the checkout dirty, not settings or notes.
CODE = ("Snakefile", "perfscribe", "rules", "workflow")
# Variables that make git use another repository; its configuration, such as safe.directory, may come from variables.
_OF_A_REPOSITORY = re.compile(r"GIT_(?!CONFIG|TEST_|TRACE)")


def commit(root: Path) -> tuple[str | None, bool | None]:
    """Commit, and whether the code differs from it; without .git, from PERFSCRIBE_COMMIT or the file .commit."""
    if head := git(root, "rev-parse", "--verify", "HEAD"):
        # No optional locks, so that `status` never blocks the user's git.
        changes = git(root, "--no-optional-locks", "status", "--porcelain", "--", *CODE)
        return head, None if changes is None else bool(changes)
    given = os.environ.get("PERFSCRIBE_COMMIT", "").strip()
    if not given and (root / ".commit").is_file():
        given = (root / ".commit").read_text().strip()
    return given or None, None


def why_no_commit(root: Path) -> str:
    """One line on why records will name no commit although this is a git checkout, with a remedy; "" otherwise."""
    if not (root / ".git").exists() or commit(root)[0]:
        return ""
    if shutil.which("git") is None:
        return "git is not installed; PERFSCRIBE_COMMIT may name the commit"
    command, env = _git(root, "rev-parse", "--verify", "HEAD")
    message = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env).stderr
    if "safe.directory" in message:
        allow = f"git config --global --add safe.directory {shlex.quote(str(root))}"
        return f"git is silent in a checkout that another user owns: `{allow}`, or PERFSCRIBE_COMMIT names the commit"
    return f"git: {(message.strip().splitlines() or ['no answer'])[0]}; PERFSCRIBE_COMMIT may name the commit"


def git(root: Path, *words: str) -> str | None:
    """Output of git in the repository at root; None if root is not a repository's top or git fails."""
    if not (root / ".git").exists():  # else git would answer for an enclosing repository
        return None
    command, env = _git(root, *words)
    return output(*command, env=env)


def _git(root: Path, *words: str) -> tuple[list[str], dict[str, str]]:
    """Return a git command and an environment without variables that name another repository."""
    env = {name: text for name, text in os.environ.items() if not _OF_A_REPOSITORY.match(name)}
    return ["git", "-C", str(root), *words], env
