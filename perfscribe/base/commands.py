"""Output of external commands."""

import os
import subprocess
from collections.abc import Mapping


def output(*command: str, timeout_s: float = 20.0, env: Mapping[str, str] = os.environ) -> str | None:
    """Stripped stdout of a command, in English; None if it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=True, env={**env, "LC_ALL": "C"}
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()
