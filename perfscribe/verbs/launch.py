"""The verb `launch`: prints, but does not run, a job script that starts ranks under Slurm or PBS."""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from perfscribe.base import called_from, cpu_sets
from perfscribe.base.one_line import Parser
from perfscribe.distributed import binding

TEMPLATES = Path(__file__).resolve().parent / "job_scripts"
LAUNCHERS = {"slurm": ("srun", "torchrun"), "pbs": ("mpiexec", "torchrun")}
PROFILES = ("torch", "nsys")
SELF_TEST = "workflow/scripts/preflight.py"
JOB = "perfscribe.experiments.polaris.rank_methods.job"
MOST_NODES, MOST_RANKS = 100_000, 1024
# Names accepted by schedulers; only these get into directives.
_NAME = re.compile(r"[A-Za-z0-9][\w.@+-]*")
_NAMES = re.compile(rf"{_NAME.pattern}(?::{_NAME.pattern})*")
_TIME = re.compile(r"\d{1,3}:[0-5]\d:[0-5]\d")


def _whole(most: int, least: int = 1) -> Any:
    def whole(text: str) -> int:
        if not re.fullmatch(r"\d{1,7}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number from {least} to {most}")
        return int(text)

    return whole


def _like(pattern: re.Pattern[str], expected: str) -> Any:
    def checked(text: str) -> str:
        if not pattern.fullmatch(text):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")
        return text

    return checked


def _bindings(text: str) -> tuple[cpu_sets.Cores, ...]:
    try:
        return tuple(binding.parse_cpu_bind(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parser() -> Parser:
    parser = Parser(
        prog="./run launch",
        description="Print a job script that trains the Polaris homework's model by data parallelism, or runs COMMAND.",
        allow_abbrev=False,
    )
    ranks, name = _whole(MOST_RANKS), _like(_NAME, "a name")
    add = parser.add_argument
    add("--scheduler", required=True, choices=LAUNCHERS)
    add("--nodes", required=True, type=_whole(MOST_NODES), help="number of nodes")
    add("--ranks-per-node", required=True, type=ranks, metavar="RANKS", help="ranks of each node")
    add("--launcher", default="", help="; ".join(f"{key}: {' or '.join(names)}" for key, names in LAUNCHERS.items()))
    add(
        "--profile", default="", choices=PROFILES, help="torch: traces of a few steps | nsys: Nsight Systems, each rank"
    )
    add("--cpu-bind", default=(), type=_bindings, metavar="LIST", help="cores of each rank of a node: list:0,1:8,9")
    add("--gpus-per-node", type=_whole(MOST_RANKS, 0), metavar="GPUS", help="Slurm: by default one for each rank")
    add("--preflight", action="store_true", help="try the links first; 44: no figure, 46: too slow, nothing is trained")
    add("--time", default="00:30:00", type=_like(_TIME, "HH:MM:SS"), help="limit, HH:MM:SS")
    add("--account", type=name, help="who pays for it")
    add("--queue", type=name, help="queue or partition")
    add("--filesystems", type=_like(_NAMES, "names with colons"), help="PBS at ALCF: home:eagle")
    add("command", nargs="*", metavar="COMMAND", help="behind --: what each rank runs, a module by python -m MODULE")
    return parser


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse and check the arguments; SystemExit with one line if they are invalid."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    possible = LAUNCHERS[asked.scheduler]
    asked.launcher = asked.launcher or possible[0]
    if asked.launcher not in possible:
        wanted = f"expected {' or '.join(possible)} for --scheduler {asked.scheduler}"
        parser.error(f"--launcher: got {asked.launcher!r}, {wanted}")
    if asked.cpu_bind and asked.launcher == "torchrun":
        parser.error("--cpu-bind: torchrun binds no ranks; expected it with srun or mpiexec")
    if asked.cpu_bind and len(asked.cpu_bind) < asked.ranks_per_node:
        parser.error(f"--cpu-bind: {len(asked.cpu_bind)} bindings for {asked.ranks_per_node} ranks of a node")
    if asked.profile == "torch" and asked.command:
        parser.error("--profile torch: COMMAND is not profiled by it; expected nsys, or no COMMAND")
    if asked.gpus_per_node is None:
        asked.gpus_per_node = asked.ranks_per_node
    return asked


def script(wanted: argparse.Namespace, root: Path) -> str:
    """Render the job script: our program runs in the checkout, a user's command where `./run` was called."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 (a shell script: values are quoted or checked)
    )
    environment.filters["quote"] = lambda text: shlex.quote(str(text))
    python, command = shlex.quote(sys.executable), shlex.join(wanted.command)
    package = f'PYTHONPATH={shlex.quote(str(root))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    ours = f"-m {JOB}" + (' --profile "$OUT"' if wanted.profile == "torch" else "")
    ranks, bindings = wanted.nodes * wanted.ranks_per_node, wanted.cpu_bind[: wanted.ranks_per_node]
    given = vars(wanted) | {
        "preflight": wanted.preflight and ranks > 1,  # a single rank has no links
        "ranks": ranks,
        "name": f"perfscribe-{wanted.nodes}x{wanted.ranks_per_node}",
        "made_by": f"Made by: ./run launch; {ranks} ranks on {wanted.nodes} node{'s' * (wanted.nodes > 1)}.",
        "folder": called_from.file(".").absolute() if command else root,
        "torchrun": f"{python} -m torch.distributed.run",
        "nsys": _nsys,
        "program": command or f"{python} {ours}",
        "try_links": f"env {package} {python} {shlex.quote(str(root / SELF_TEST))}",
        # torchrun takes a script, a module after -m, or any program after --no-python.
        "program_of_torchrun": f"--no-python {command}" if command else ours,
        "slurm_binding": f"mask_cpu:{','.join(map(cpu_sets.mask, bindings))}" if bindings else "cores",
        "pals_binding": binding.as_list(bindings) if bindings else "",
    }
    return environment.get_template(f"{wanted.scheduler}.sh.j2").render(given)


def _nsys(output: str) -> str:
    """Prefix of a command to trace with Nsight Systems into OUT/<output>.nsys-rep."""
    return f'nsys profile --trace=cuda,nvtx,osrt --force-overwrite=true --output="$OUT/{output}"'


def main(root: Path, arguments: Sequence[str], _: Any) -> int:
    """Print the script."""
    print(script(read(arguments), root), end="")
    return 0
