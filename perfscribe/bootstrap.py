"""Make or check the environment for everything else. Only the standard library; run as a file, not imported.

bootstrap.py install FOLDER    a virtual environment with what requirements.lock pins, and this checkout's package
bootstrap.py check             the interpreter at hand has what requirements.in asks for
"""

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEWEST = (3, 13)  # newest Python for which all locked packages have wheels
LOCKED = (ROOT / "requirements.lock", ROOT / "requirements-torch.txt")


def say(text: str) -> None:
    """Print one line to stderr."""
    print(text, file=sys.stderr, flush=True)


def pip(folder: Path, *arguments: str) -> None:
    """Run the environment's pip; SystemExit with its output if it fails."""
    words = ["-m", "pip", "--disable-pip-version-check", "install", "--no-user"]  # overrides pip.conf
    command = [str(folder / "bin" / "python"), *words, *arguments]
    # NVIDIA's images set PIP_CONSTRAINT to versions that contradict the lock; the others put packages elsewhere.
    foreign = ("PIP_CONSTRAINT", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_DRY_RUN")
    env = {name: value for name, value in os.environ.items() if name not in foreign}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    if done.returncode:
        say(done.stdout[-3000:])
        line = f"run: pip could not install {' '.join(arguments[-2:])}; see above"
        if sys.version_info[:2] > NEWEST:
            line += (
                "; this Python takes a C compiler and its headers (python3-dev), PYTHON=python3.13 ./run takes neither"
            )
        sys.exit(line)


def install(folder: Path) -> None:
    """Make the environment, unless another process has just done so."""
    wanted = b"".join(path.read_bytes() for path in LOCKED)
    stamp = folder / "installed"
    lock = ROOT / ".perfscribe" / "install.lock"
    lock.parent.mkdir(exist_ok=True)
    with open(lock, "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_bytes() == wanted:
            return
        say(f"run: making the environment in {folder.name} (once; some minutes where CUDA packages come along)")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            venv.create(folder, with_pip=True)
        except subprocess.CalledProcessError as error:
            say((error.stdout or b"").decode(errors="replace")[-3000:])
            sys.exit(f"run: Python's venv could not put pip into {folder.name}; see above")
        # The hashed lock is complete, so nothing is resolved; torch then adds only its build's dependencies.
        pip(folder, "--quiet", "--no-deps", "--require-hashes", "-r", str(LOCKED[0]))
        pip(folder, "--quiet", "-r", str(LOCKED[1]))
        pip(folder, "--quiet", "--no-deps", "--no-build-isolation", "-e", str(ROOT))  # by the lock's setuptools
        stamp.write_bytes(wanted)


def check() -> None:
    """Raise SystemExit naming every package that is missing or too old in this interpreter."""
    from importlib import metadata

    try:
        from packaging.requirements import Requirement
    except ImportError:
        sys.exit("run --system: the package `packaging` is missing in this Python")
    bad = []
    lines = [*(ROOT / "requirements.in").read_text().splitlines(), "torch>=2.11"]
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        requirement = Requirement(line)
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            bad.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            bad.append(f"{requirement.name} is {version}, needed {requirement.specifier}")
    if bad:
        sys.exit("run --system: " + "; ".join(bad))


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        check()
    elif len(sys.argv) == 3 and sys.argv[1] == "install":
        try:
            install(Path(sys.argv[2]))
        except (OSError, ValueError) as error:  # e.g. another user's checkout, a full disk, .venv is a link
            sys.exit(f"run: the environment cannot be made in {ROOT}: {error}")
    else:
        sys.exit(__doc__)
