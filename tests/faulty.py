"""Measuring modules of tests: cells that note each of their executions, and cells that fail, each in its own way."""

from collections import Counter
from pathlib import Path

# The first lines of each: note() appends one durable line to a side file at the begin and at the end of a cell.
NOTES = '''"""Cells of a test."""
import os

from perfscribe.base.cells import Cell, Measurement, Unsupported

SIDE_FILE = {side_file!r}


def note(what, cell):
    line = f"{{what}} {{os.getpid()}} {experiment} " + " ".join(map(str, cell.factors.values())) + "\\n"
    handle = os.open(SIDE_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode())
    os.fsync(handle)
    os.close(handle)


def done(cell, **values):
    note("end", cell)
    return Measurement(samples={{"time_ms": [1.0, 2.0, 3.0]}}, timers={{"time_ms": "host clock"}}, values=values)


'''

SLEEPING = """def cells(config):
    return [Cell({"n": n}, cost=n) for n in config["n"]]


def run(cell):
    import time

    note("start", cell)
    time.sleep(config_seconds[cell["n"] % len(config_seconds)])
    return done(cell, pid=os.getpid())


config_seconds = SECONDS
"""

# How many cells may end stands in a file, else it is one; each of the others waits there, until it may or is ended.
WAITING = """def cells(config):
    return [Cell({"n": n}, cost=n) for n in config["n"]]


def run(cell):
    import time

    note("start", cell)
    for _ in range(15_000):
        may_end = open(SIDE_FILE + ".may_end").read() if os.path.exists(SIDE_FILE + ".may_end") else 1
        if cell["n"] < int(may_end):
            return done(cell)
        time.sleep(0.02)
    raise TimeoutError("nobody let it end")
"""

FAULTS = """def cells(config):
    return [Cell({"what": what}, cost=n) for n, what in enumerate(config["what"])]


def run(cell):
    note("start", cell)
    return globals()[cell["what"]](cell)


def fine(cell):
    return done(cell)


fine_too = fine


def numpy_oom(cell):
    import numpy

    return numpy.empty(1 << 50, dtype=numpy.uint8)


def bare_oom(cell):
    raise MemoryError


def hang(cell):
    import subprocess, time

    subprocess.Popen(["sleep", "123456"])
    time.sleep(123456)


def segfault(cell):
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)


def kills_its_job(cell):
    import signal, time

    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def raises(cell):
    raise ValueError("a bad value\\nand more lines")


def raises_no_unicode(cell):
    raise OSError("no such file: \\udcff")


def exits(cell):
    os._exit(3)


def prints(cell):
    print('{"status": "ok", "reason": "rubbish"}', flush=True)
    os.write(1, b"rubbish\\xff\\n" * 1000)
    os.system("echo rubbish")
    return done(cell)


def gives_nan(cell):
    return Measurement(samples={"time_ms": [1.0, float("nan")]}, timers={"time_ms": "host clock"})


def gives_nothing(cell):
    return Measurement()


def gives_an_object(cell):
    return Measurement(values={"thing": object()})


def unsupported(cell):
    raise Unsupported("needs a quantum computer")
"""


def source(experiment: str, side_file: Path, body: str) -> str:
    """Text of a measure.py whose cells note their executions in side_file."""
    return NOTES.format(side_file=str(side_file), experiment=experiment) + body


def sleeping(experiment: str, side_file: Path, seconds: tuple[float, ...]) -> str:
    """One whose cells n take seconds[n % len(seconds)]."""
    return source(experiment, side_file, SLEEPING.replace("SECONDS", repr(seconds)))


def let_end(side_file: Path, cells: int) -> None:
    """Let the first cells of WAITING end, as many as that."""
    new = Path(f"{side_file}.may_end.new")
    new.write_text(str(cells))
    new.replace(f"{side_file}.may_end")


def notes(side_file: Path, what: str = "start") -> Counter[str]:
    """How often each cell (`<experiment> <levels>`) has started or ended."""
    lines = side_file.read_text().splitlines() if side_file.is_file() else []
    return Counter(line.split(" ", 2)[2] for line in lines if line.startswith(f"{what} "))


def processes(side_file: Path) -> list[str]:
    """The process of each execution, in their order."""
    return [line.split()[1] for line in side_file.read_text().splitlines() if line.startswith("start ")]
