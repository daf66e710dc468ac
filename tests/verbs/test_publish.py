"""`./run publish`: nothing private, drawn again byte for byte anywhere, read-only. Then every site committed here."""

import gzip
import json
import os
import platform
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sessions
from workspace import ROOT, Workspace

from perfscribe.base import files
from perfscribe.records import journal, records, scrub
from perfscribe.show import provenance
from perfscribe.verbs import publish

USER, NODE = "zelda_quist", "qx-node-417"
PRIVATE_ENVIRONMENT = {"USER": USER, "LOGNAME": USER, "HOSTNAME": NODE, "NCCL_DEBUG_FILE": f"/home/{USER}/nccl.log"}
TOOL = "/opt/Quilla Drew/nsys"  # where a path ends that has a blank, no text can tell
NOTE = "report/notes/{}/polaris.md"
WRITTEN = f"Written by {USER} on {NODE}:\r\nthe fan of /home/{USER}/gpu is loud, {{{{ site }}}}.\n"
MEASURE = '''"""Cells that tell what they should not."""
import os
import platform

from perfscribe.base.cells import Cell, Measurement

SIDE_FILE = {side_file!r}


def cells(config):
    return [Cell({{"n": n}}) for n in config["n"]]


def run(cell):
    with open(SIDE_FILE, "a") as stream:
        stream.write(f"{{cell['n']}}\\n")
    if cell["n"] == 4:
        where = f"{{os.path.abspath(__file__)}} on {{os.environ['HOSTNAME']}}"
        raise RuntimeError(f"cannot read {{where}} as {{os.environ['USER']}}, see {{os.getcwd()}}")
    texts = {{"from": f"/home/{{os.environ['USER']}}/data.bin", "node": platform.node()}}
    return Measurement(
        samples={{"time_ms": [float(cell["n"]), 2.0, 3.0]}}, values=texts, timers={{"time_ms": "host clock"}}
    )
'''
PRESENT = '''"""Its table and its figure."""
from perfscribe.show import figures as f
from perfscribe.show import tables as t

TABLES = ("cs336.probe",)
FIGURES = ("cs336.probe_time",)


def tables(records):
    columns = [t.factor("n", "n"), t.median("time_ms", "Time (ms)"), t.iqr("time_ms"), t.value("from", "From")]
    return [t.make(TABLES[0], "Probe", records["probe"], columns)]


def figures(tables):
    times = list(tables[TABLES[0]].ok["time_ms"])
    return [f.Figure(FIGURES[0], "Time over n.", lambda canvas: canvas.subplots().plot(times))]
'''


class Site(Workspace):
    """A project whose user, node and paths are known, with a published site `demo`."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **PRIVATE_ENVIRONMENT}

    @property
    def side_file(self) -> Path:
        return self.root.parent / "executions"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    made = Site(tmp_path_factory.mktemp("publish") / "checkout")
    made.only()
    made.add_experiment("probe", MEASURE.format(side_file=str(made.side_file)), PRESENT, n=[1, 2, 3, 4])
    files.write_bytes(made.root / NOTE.format("local"), WRITTEN.encode())
    made.succeed("report", "--config", f"tools={{nsys: {TOOL}}}")
    published = made.succeed("publish", "demo")
    last = published.splitlines()[-1]
    committed = "results/demo report/demo report/notes/demo report/README.md"
    assert re.fullmatch(rf"published: 0\.\d MiB; commit it with `git add {committed}`", last)
    assert f"publish: {NOTE.format('demo')} is that of site local, names and paths" in published
    return made


def published_files(root: Path, name: str) -> Iterator[Path]:
    """Every file of a published site."""
    for folder in (root / "results" / name, root / "report" / name):
        yield from (path for path in sorted(folder.rglob("*")) if path.is_file())


def drawn(root: Path, name: str) -> dict[str, bytes]:
    """Files drawn from a site's journals, with their content: records, tables, summary, report and figures."""
    folders = (f"results/{name}/records", f"results/{name}/tables", f"report/{name}")
    paths = [path for folder in folders for path in (root / folder).rglob("*") if path.is_file()]
    paths += (root / "results" / name).glob("summary.json")
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def cloned(workspace: Workspace, root: Path, name: str) -> None:
    """The site as a clone of its repository has it, without anything that is drawn."""
    shutil.copytree(root / "results" / name, workspace.root / "results" / name)
    for folder in ("records", "tables"):
        shutil.rmtree(workspace.root / "results" / name / folder, ignore_errors=True)
    for file in ("verdict.txt", "summary.json"):
        (workspace.root / "results" / name / file).unlink(missing_ok=True)


@pytest.fixture
def clone(site: Site, tmp_path: Path) -> Site:
    """Another checkout of the project, which has the published site and has run nothing."""
    (tmp_path / "elsewhere").mkdir()
    made = Site.__new__(Site)
    made.root = tmp_path / "elsewhere" / "checkout"
    ignored = shutil.ignore_patterns("__pycache__", ".snakemake", ".perfscribe", "local", "demo", "logs")
    shutil.copytree(site.root, made.root, ignore=ignored)
    cloned(made, site.root, "demo")
    shutil.copytree((site.root / NOTE.format("demo")).parent, (made.root / NOTE.format("demo")).parent)
    shutil.copy(site.side_file, made.side_file)
    return made


# --- nothing private --------------------------------------------------------------------------------------------


def test_private_facts_were_there_and_are_gone(site: Site) -> None:
    facts = [USER, NODE, f'"node": "{platform.node()}"', str(site.root), f"/home/{USER}"]
    local = b"".join(path.read_bytes() for path in (site.root / "results" / "local").rglob("*.jsonl")).decode()
    assert all(fact in local for fact in facts)
    for path in published_files(site.root, "demo"):
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8", "replace")
        assert not [fact for fact in (*facts, "Drew") if fact in text], path


def test_what_was_measured_is_all_there(site: Site) -> None:
    own, shown = site.rows("probe"), site.rows("probe", "demo")
    for key in ("id", "key", "samples", "status", "fingerprint", "spent", "environment", "order"):
        assert [row[key] for row in own] == [row[key] for row in shown]
    assert [row["provenance"]["node"] for row in shown] == ["<host>"] * 4
    assert shown[3]["reason"] == ("RuntimeError: cannot read <path>/measure.py on <host> as <user>, see <path>")
    assert "as &lt;user>, see &lt;path>" in site.report("demo") and "# Perfscribe: demo" in site.report("demo")
    assert json.loads((site.root / "results" / "demo" / "published.json").read_text())["commit"] == "0" * 40


def test_notes_go_along_and_stay_as_they_were_written(site: Site) -> None:
    assert (site.root / NOTE.format("local")).read_bytes().decode() == WRITTEN
    copied = (site.root / NOTE.format("demo")).read_bytes().decode()
    assert copied == "Written by <user> on <host>:\r\nthe fan of <path> is loud, {{ site }}.\n"
    for name, text in (("local", WRITTEN), ("demo", copied)):
        assert text.replace("\r", "").strip() in site.report(name)


def published(root: Path, kept: Sequence[dict[str, Any]], shown: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The published records of a site whose journal keeps these and whose report shows those."""
    source, target = root / "results" / "local", root / "results" / "demo"
    with journal.Journal(source / "journal" / "a" / "0.jsonl") as book:
        for row in kept:
            book.record(row)
    files.write_text(source / "records" / "a" / "0.jsonl", "".join(json.dumps(row) + "\n" for row in shown))
    publish.copy_measured(root, source, target, ["a"])
    return list(journal.read(target / "journal" / "a").all_records())


def row(key: str, **fields: Any) -> dict[str, Any]:
    same = {"experiment": "a", "round": 1, "factors": {}, "status": "ok", "fingerprint": ""}
    return records.make({**same, "key": key, **fields})


def test_nodes_of_a_cluster_become_numbers(tmp_path: Path) -> None:
    cluster = {"cluster": {"executor": "slurm"}, "slurm_job_id": "77"}
    rows = [row(key, provenance={"node": node, **cluster}) for key, node in (("0", f"{NODE}b"), ("1", NODE))]
    shown = [one["provenance"] for one in published(tmp_path, [*rows, row("2")], [])]
    assert [provenance.node_name(one) for one in shown[:2]] == ["node 2", "node 1"] and shown[2] == {}
    assert NODE not in str(shown) and "77" not in str(shown)


def test_of_a_cell_that_was_measured_in_several_ways_the_figure_of_the_report_stands(tmp_path: Path) -> None:
    first, second, of_another_seed = row("0", environment="one"), row("0", environment="two"), row("1")
    assert published(tmp_path, [first, second, of_another_seed], [first]) == [second, first]
    assert published(tmp_path, [], [row("2", status="not_run")]) == []


# --- drawn again ------------------------------------------------------------------------------------------------


def test_another_checkout_draws_the_same_bytes_and_measures_nothing(site: Site, clone: Site) -> None:
    """Also where what measures was edited since."""
    expected = drawn(site.root, "demo")
    assert {Path(name).suffix for name in expected} == {".jsonl", ".csv", ".json", ".svg", ".md"}
    journals = {path: path.read_bytes() for path in (clone.root / "results" / "demo" / "journal").rglob("*.gz")}
    measure = clone.root / "perfscribe" / "experiments" / "cs336" / "probe" / "measure.py"
    measure.write_text(measure.read_text().replace("2.0, 3.0", "2.0, 3.5"))
    clone.succeed("report", "--config", "site=demo")
    got = drawn(clone.root, "demo")
    assert got.keys() - expected.keys() == {"report/demo/report.html"}
    assert not [name for name in expected if got[name] != expected[name]]
    (clone.root / NOTE.format("demo")).write_text("Written later.\n")
    assert clone.planned_jobs("--config", "site=demo") == {"write_report", "write_html", "verdict"}
    assert len(clone.side_file.read_text().splitlines()) == 4, "a cell was measured"
    assert journals and journals == {path: path.read_bytes() for path in journals}


def test_a_site_is_gone_on_with_and_replaced(site: Site, clone: Site) -> None:
    clone.succeed("publish", "--continue", "demo")
    demo = clone.root / "results" / "demo" / "journal" / "probe"
    before = [one["id"] for one in journal.read(demo).all_records()]
    told = clone.succeed("report")
    assert "probe n=" not in told and "report/local/report.md" in told
    shutil.rmtree(demo)
    for name in ("local", "demo"):
        files.write_text(clone.root / NOTE.format(name), f"of {name}\n")
    replaced = clone.run("publish", "--replace", "demo")
    assert replaced.returncode == 0 and f"{NOTE.format('demo')} was there and stays as it is" in replaced.stdout
    assert (clone.root / NOTE.format("demo")).read_text() == "of demo\n"
    assert clone.planned_jobs("--config", "site=demo") == {"write_html"}
    assert [row["id"] for row in clone.rows("probe", "demo")] == before and "had figures" not in replaced.stdout
    with pytest.raises(ValueError, match="site local has results of its own; move results/local away first"):
        publish.main(clone.root, ["--continue", "demo"], dict)
    clone.succeed("report", "--config", "experiments={probe: {n: [1]}}")
    fewer = clone.run("publish", "--replace", "demo")
    assert "publish: demo had figures of 3 cells, now of 1: all that the report" in fewer.stdout, "nothing goes unsaid"
    whole = drawn(clone.root, "demo")
    replace = clone.command("publish", "--replace", "demo"), clone.root, clone.environment(), clone.root / "output"
    with sessions.running(*replace) as process:
        sessions.wait_for(lambda: list(clone.root.glob(".replaced-*")))
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM, process.log()
    assert drawn(clone.root, "demo") == whole and not list(clone.root.glob(".replaced-*"))


# --- refusals ---------------------------------------------------------------------------------------------------


def test_what_cannot_be_published_is_one_line(site: Site, tmp_path: Path) -> None:
    before = drawn(site.root, "demo")
    for root, arguments, said in (
        (site.root, ["demo"], "results/demo and report/demo: there already; take another name or "),
        (site.root, ["--replace", "dmeo"], "there is no published site dmeo to replace; publish dmeo makes"),
        (site.root, ["local"], "local is a folder of the project; take another name$"),
        (site.root, ["../a"], "one name is needed, of lower-case letters, digits, - and _"),
        (site.root, ["--redraw", "nowhere"], "'nowhere' is no published site; there are: demo$"),
        (tmp_path, ["demo"], "there are no results of site local to publish as demo$"),
    ):
        with pytest.raises(ValueError, match=f"^publish: {said}"):
            publish.main(root, arguments, dict)
    assert drawn(site.root, "demo") == before


def test_what_may_not_be_committed_is_told(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publish.scrub, "private_here", lambda root: scrub.Private(users=(USER,)))
    for parent in ("results", "report"):
        shutil.copytree(site.root / parent / "demo", tmp_path / parent / "demo")
    assert publish._check(tmp_path, "demo") == 0
    files.write_text(tmp_path / "report" / "notes" / "demo" / "stray.txt", f"of {USER}\n")
    files.write_bytes(tmp_path / "results" / "demo" / "large", b"\0" * 5 * 2**20)
    assert publish._check(tmp_path, "demo") == 1
    assert re.search(rf"publish: stray.txt:1: {USER}\n.*publish: 5\.\d MiB, allowed are 5", capsys.readouterr().err)


# --- the sites committed here -----------------------------------------------------------------------------------

COMMITTED = sorted(path.parent.name for path in ROOT.glob("results/*/published.json"))
SITES = COMMITTED or [pytest.param("", marks=pytest.mark.skip(reason="no site is committed: results/*/published.json"))]


@pytest.mark.parametrize("name", SITES)
def test_a_committed_site_holds_nothing_private_and_is_small(name: str) -> None:
    folders, private = [ROOT / "results" / name, ROOT / "report" / name], scrub.private_here(ROOT)
    assert [finding for folder in folders for finding in scrub.find_private(folder, private)] == []
    assert publish.committed_mib(folders) <= publish.LARGEST_MIB
    ignored = subprocess.run(["git", "check-ignore", "-v", *folders], cwd=ROOT, capture_output=True, text=True)
    assert not ignored.stdout


@pytest.fixture(scope="module")
def redrawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another checkout, which has drawn all committed sites, of a user with settings of matplotlib.

    Its processor is as simple as numpy can be told of.
    """
    clone = Workspace(tmp_path_factory.mktemp("redrawn") / "checkout")
    for name in COMMITTED:
        cloned(clone, ROOT, name)
    notes = ROOT / "report" / "notes"
    if notes.is_dir():
        shutil.copytree(notes, clone.root / "report" / "notes")
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # type: ignore[index]
    settings = tmp_path_factory.mktemp("settings")
    (settings / "matplotlibrc").write_text("lines.linewidth: 9\ntext.usetex: True\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MPLCONFIGDIR", str(settings))
        patched.setenv("MPLBACKEND", "module://no_such.backend_inline")
        patched.setenv("NPY_DISABLE_CPU_FEATURES", " ".join(found))
        patched.setenv("OPENBLAS_CORETYPE", "Nehalem")
        told = clone.succeed("publish", "--redraw")
    assert told.splitlines() == [f"report/{name}/report.md" for name in COMMITTED]
    return clone.root


@pytest.mark.parametrize("name", SITES)
def test_a_committed_site_is_what_this_code_draws(name: str, redrawn: Path) -> None:
    """If this fails, code that shows has changed: `./run publish --redraw`, and commit the results."""
    got, expected = (
        {path: found for path, found in drawn(root, name).items() if not re.search(r"/records/|\.html$", path)}
        for root in (redrawn, ROOT)
    )
    assert got.keys() == expected.keys()
    pinned = f"matplotlib=={metadata.version('matplotlib')} " in (ROOT / "requirements.lock").read_text()
    compared = [path for path in expected if pinned or Path(path).suffix != ".svg"]
    assert not [path for path in compared if got[path] != expected[path]]
