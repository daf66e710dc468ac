"""Whatever a file holds: it is read, or refused in one line. Nothing that it holds is run, and reading writes nothing.

Valid files are damaged, the same way each time, for two seconds in all; PERFSCRIBE_FUZZ_S=60 gives each kind a minute.
"""

import gzip
import json
import os
import pickle
import re
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from test_fill import HEAD, known

from perfscribe import cli
from perfscribe import config as configuration
from perfscribe.base import called_from
from perfscribe.config.keys import PRESETS
from perfscribe.data import digest_file, formats, squad, squad_generated, tokenizer
from perfscribe.distributed import nccl_tests
from perfscribe.instruments.profiling.nsys_export import read_sqlite
from perfscribe.instruments.profiling.torch_profiler import read_chrome_trace
from perfscribe.plan import cluster, plan, subjects
from perfscribe.records import journal, records
from perfscribe.report import handin, html, sites, summary
from perfscribe.report.rows import Site
from perfscribe.run.shard import Shard
from perfscribe.verbs.fill import document, verb

ROOT = Path(__file__).resolve().parents[2]

# In the place of a part of JSON.
ODD: list[Any] = json.loads('[null, true, -1, 1e308, 0.5, "", "x", "../../x", "/etc/x", "\\n\\u0000", [], {}, [[]]]')
ODD += [10**30, {"a": 1}]
# Among bytes.
SCRAPS = [b"\0", b"\n", b"\xff", b'"', b"{", b"|", b"NaN", b"1e999", b"\n---\n", b"../../x", b"<script>"]
SCRAPS += [b"[" * 5000, b"(" * 500, b"!!python/object/apply:os.abort []", b"__import__('os').abort()"]
SCRAPS += [pickle.dumps(os.abort)]


def damaged(content: bytes, draw: Random) -> bytes:
    """Some bytes lost, changed, added, or the end cut off."""
    made = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at, size = draw.randrange(len(made) + 1), draw.choice((1, 1, 4, 64))
        new = draw.choice((b"", draw.randbytes(size), draw.choice(SCRAPS), bytes(made[at : at + 64])))
        made[at : at + draw.choice((0, size))] = new
    return bytes(made[: draw.randrange(len(made) + 1)] if draw.random() < 0.1 else made)


def altered(value: Any, draw: Random) -> Any:
    """The JSON value with a part of it lost, or another in its place."""
    if not isinstance(value, (dict, list)) or not value or draw.random() < 0.1:
        return draw.choice(ODD)
    made = value.copy()
    place = draw.choice(list(made) if isinstance(made, dict) else range(len(made)))
    if draw.random() < 0.1:
        del made[place]
    else:
        made[place] = altered(made[place], draw)
    return made


def as_json(content: bytes, draw: Random) -> bytes:
    return json.dumps(altered(yaml.load(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), draw)).encode()


def as_lines(content: bytes, draw: Random) -> bytes:
    """A line altered; a journal's with the digest that belongs to it."""
    if content[:2] == b"\x1f\x8b":
        return gzip.compress(as_lines(gzip.decompress(content), draw))
    lines = content.splitlines()
    place = draw.randrange(len(lines))
    made = altered(json.loads(lines[place]), draw)
    signed = b'"digest"' in lines[place] and isinstance(made, dict)
    lines[place] = journal.as_line(made)[:-1] if signed else json.dumps(made).encode()
    return b"\n".join(lines) + b"\n"


RECORDS = (ROOT / "tests/fixtures/report/records/probe/0.jsonl").read_bytes()


def config(path: Path) -> None:
    raw = configuration.load(path, {})
    configuration.check(raw)
    assert all(configuration.resolve(raw, preset) for preset in PRESETS)


def overrides(path: Path) -> None:
    word = path.read_text("utf-8", "replace")
    configuration.check(configuration.load(ROOT / "config.yaml", cli.command_line_config(["--config", word])))


def history(path: Path) -> None:
    found = journal.read(path.parent)
    assert all(found.of_cell(one["factors"], one["round"]) for one in found.all_records())


def environment(path: Path) -> None:
    cells = [records.Record("probe", {}, "ok", "", "measured", environments=[path.stem])]
    summary.of_site({"site": "a", "preset": "cpu"}, {"probe": cells}, path.parents[1])


def table(path: Path) -> None:
    stored = Site("a", path.parent, "cpu").table(path.stem)
    assert all(cell is not None for row in stored.rows for cell in row.values())


def opened(path: Path) -> None:
    formats.FORMATS[path.name].load(path)
    arrays, close = formats.FORMATS[path.name].open(path)
    assert all(np.asarray(array[0]) is not None for array in arrays.values())
    close()


def page(path: Path) -> None:
    text = called_from.text(path)
    handin.by_heading(text, ["Problem (attention)"], {})
    verb.fill(document.parse(text), [known()], site=TABLES)
    html._html(text, path.parent)


def saved(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        formats.FORMATS[name].save(Path(folder) / "a", {"source": np.arange(12.0).reshape(3, 4)})
        return (Path(folder) / "a").read_bytes()


def lines() -> bytes:
    rows = [json.loads(line) for line in RECORDS.splitlines()[:3]]
    slot = {"key": rows[0]["key"], "round": 1}
    events = [{"event": "started", **slot}, *({"event": "record", "time": 1, **row} for row in rows)]
    events += [{"event": "retired", "time": 2, "ids": ["x"], "slots": [["x", 1]]}, {"event": "interrupted", **slot}]
    return b"".join(map(journal.as_line, [*events, {"event": "waiting", "experiment": "probe", "what": "waits"}]))


def trace() -> bytes:
    kinds = {"user_annotation": "step", "cpu_op": "aten::mm", "cuda_runtime": "cudaLaunchKernel", "kernel": "gemm"}
    same = {"ph": "X", "pid": 7, "tid": 7, "ts": 10, "dur": 3.5, "args": {"correlation": 3}}
    return json.dumps({"traceEvents": [{**same, "cat": cat, "name": name} for cat, name in kinds.items()]}).encode()


SUBJECT = b"import os\nfrom .a import x\n\ndef get_ddp_bucketed(m):\n    return x\n\nopen('ran', 'w')\nos.abort()\n"
LOG = b"# Rank 0 Group 0 Pid 12 on vm device 0\n# Rank 1 Group 0 Pid 13 on vm device 1\n# Avg bus bandwidth : 1.5 OK\n"
BOUND = """<!-- perfscribe: cs336.pytorch_attention, dtype=fp32; d{head_dim} (s)=forward_ms; n=seq_len[1k=1024] -->
| n | d16 (s) | d32 (s) |
|---|---|---|
| 1k | | |
"""
TABLES = Site("h200x4", ROOT / "results" / "h200x4" / "tables", "cuda")
PAGE = f"# A\n{HEAD}| One GPU | 1 | |\n\n{BOUND}\n![a](figures/a.svg) [b](../b.md)\n".encode()
QUESTIONS = squad_generated.document(4, 0, "dev", 1)
NEEDS = b'{"settings": {"executor": "slurm"}, "needs": {"probe": [[1, 1]]}}'


def kept(name: str) -> Callable[[], bytes]:
    return min((ROOT / "results/cpu2").glob(name)).read_bytes


class Parser(NamedTuple):
    file: str
    valid: Callable[[], bytes]
    read: Callable[[Path], object]
    refuses: tuple[type[BaseException], ...] = (ValueError,)
    draw: Callable[[bytes, Random], bytes] = damaged  # what else alters it


CONFIG = (configuration.ConfigError, SystemExit)
CHILD = (Exception,)  # of code that is measured: a cell's child makes any exception the cell's reason
PARSERS = [
    Parser("config.yaml", (ROOT / "config.yaml").read_bytes, config, CONFIG, as_json),
    Parser("words", lambda: b"experiments={attention: {batch: 2}}", overrides, CONFIG),
    Parser("0.jsonl", lines, history, draw=as_lines),
    Parser("0.jsonl.gz", lambda: gzip.compress(lines()), history, draw=as_lines),
    Parser("probe/0.jsonl", lambda: RECORDS, lambda path: records.load_by_experiment([path]), draw=as_lines),
    Parser("cpu2/plan/index.json", kept("plan/index.json"), lambda path: plan.read_index(path.parent), draw=as_json),
    Parser("plan/0.json", kept("plan/measure-ddp-0.json"), lambda path: Shard(path, path.parents[1]), draw=as_json),
    Parser("cluster.json", lambda: NEEDS, lambda path: cluster.read(path.parent), draw=as_json),
    Parser("a/environments/e.json", kept("environments/*.json"), environment, draw=as_json),
    Parser("results/a/summary.json", kept("summary.json"), lambda path: sites.text(path.parents[2]), draw=as_json),
    Parser("t.csv", kept("tables/cs336.pytorch_attention.csv"), table),
    Parser("adapters.py", lambda: SUBJECT, lambda path: subjects.read("yours", path)),
    Parser("page.md", lambda: PAGE * 2, page),
    Parser("a.log", lambda: LOG, lambda path: nccl_tests.parse(nccl_tests.read(path)), (nccl_tests.NoFigure,)),
    Parser("a.digest", kept("data/tokens_16x4096.digest"), digest_file.load_digest, CHILD, as_json),
    Parser("squad.json", lambda: json.dumps(QUESTIONS).encode(), squad.read, CHILD, as_json),
    Parser(
        "tokenizer.json", lambda: tokenizer.train("a", 300).text.encode(), lambda p: tokenizer.load(p.parent), CHILD
    ),
    Parser("trace.json", trace, lambda path: read_chrome_trace(path, "cuda", "2"), CHILD, as_json),
    Parser("a.sqlite", (ROOT / "tests/fixtures/nsys/synthetic.sqlite").read_bytes, read_sqlite, CHILD),
    *(Parser(name, partial(saved, name), opened, CHILD) for name in sorted(set(formats.FORMATS) - {"npy"})),
]
FORBIDDEN = re.compile(r"os\.(system|exec|fork|posix_spawn|remove|rename|mkdir)|subprocess|socket|pickle\.find_class")
WATCHED: list[list[str]] = []


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    if WATCHED:
        opens = event == "open" and "__pycache__" not in str(arguments[0])
        writes = opens and (arguments[2] or 0) & (os.O_ACCMODE | os.O_CREAT)
        runs = event == "exec" and not os.path.exists(arguments[0].co_filename)
        if writes or runs or FORBIDDEN.match(event):
            WATCHED[-1].append(f"{event} {arguments!r:.200}")


sys.addaudithook(audit)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.file)
def test_it_is_read_or_refused_in_one_line(parser: Parser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, draw, valid = tmp_path / "in" / parser.file, Random(0), parser.valid()
    path.parent.mkdir(parents=True)
    (path.parent / "published.json").touch()
    path.write_bytes(valid)
    parser.read(path)  # imports what reading takes
    found: list[str] = []
    ends = time.monotonic() + float(os.environ.get("PERFSCRIBE_FUZZ_S") or 2 / len(PARSERS))
    while time.monotonic() < ends:
        content = draw.choice((damaged, parser.draw))(valid, draw)
        path.write_bytes(content)
        monkeypatch.setattr(sys.modules[__name__], "WATCHED", [found])
        try:
            parser.read(path)
        except parser.refuses as error:
            assert parser.refuses == CHILD or len(str(error).splitlines()) == 1, content
        except BaseException as error:
            pytest.fail(f"{type(error).__name__}: {error} for {content!r:.3000}")
        finally:
            monkeypatch.undo()
        assert not found, content
