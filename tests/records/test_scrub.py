"""Nothing private stays, and nothing else changes."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscribe.records import machine, provenance, records, scrub
from perfscribe.records.scrub import Private, find_private, gather, private_here, scrub_text

ALICE = Private(
    hosts=("x3001c0s13b0n0", "vm"),
    users=("alice", "ed", "max", "root"),
    paths=("/lus/eagle/My Project/checkout", "/home/alice"),
    ordinary=frozenset({"max", "root", "vm"}),
)

KEPT = [
    "The square root of the mean square (root finding); root causes; measured by ed's rule, red, edge",
    "3352 GB/s of 4.8 TB/s, 12.3 tokens/s, samples/s/GPU, ms/step, 1/2, (1/2)/(3/4), N/root/2, and/or",
    "NVIDIA H200, NVIDIA A100-SXM4-80GB, AMD EPYC 9654 96-Core, driver 580.159.04, CUDA 13.0, 2.11.0+cu130",
    "cuDNN 9.10.2.21 at 2026-11-20T09:07:46+00:00 or 11/20/2026; 1e-3, 0x1f, -0.5, 10^9, 95 %, 2**30",
    "https://github.com/alice/attention, https://arxiv.org/abs/2205.14135, doi:10.1145/2807591.2807644",
    "| max | min |\n| --- | --- |\n| 1.5 | 0.2 |",
    "/proc/stat, /dev/shm, /sys/fs/cgroup/memory.max and /etc/os-release are the same everywhere; /tmp too",
    "max(a, b) / max(c, d); max=3; --max; max@10, recall@10; a vm is a virtual machine; vm: virtual; vm:100",
    "at /pytorch/aten/src/ATen/native/Linear.cpp:12 <frozen importlib._bootstrap>",
]


REPLACED = {
    'File "/home/alice/venv/lib/python3.12/site-packages/torch/nn/x.py", line 3, in f': (
        'File "<path>/x.py", line 3, in f'
    ),
    'File "/lus/eagle/My Project/checkout/perfscribe/a b.py", line 3': 'File "<path>/a b.py", line 3',
    "/root/.cache/torch/kernels: no space, /root/x.py": "<path>: no space, <path>/x.py",
    "cd /scratch/dave; ls /scratch/data.h5": "cd <path>; ls <path>",
    "(/tmp/pytest-of-root/pytest-0/a.csv), /tmp/torchinductor_bob": "(<path>/a.csv), <path>",
    "g++ -I/home/bob/include -L/opt/cuda/lib64 a.cpp": "g++ -I<path> -L<path> a.cpp",
    "https://x.org/a,/home/bob/c.csv": "https://x.org/a,<path>/c.csv",
    "results_alice.csv, ~alice/x": "results_<user>.csv, ~<user>/x",
    "ed@x3001c0s13b0n0:/home/ed/x": "<user>@<host>:<path>",
    "root@vm:~# USER=root user: max": "<user>@<host>:~# USER=<user> user: <user>",
    "x3001c0s13b0n0.hsn.cm.polaris.alcf.anl.gov is down": "<host> is down",
    "vm:1234:1240 [0] NCCL INFO cudaDriverVersion": "<host>:1234:1240 [0] NCCL INFO cudaDriverVersion",
    "#  Rank  1 Group  0 Pid  12 on   vm device  0": "#  Rank  1 Group  0 Pid  12 on   <host> device  0",
    "http://vm:8888/tree?token=1": "http://<host>:8888/tree?token=1",
    '{"node": "gpu-07", "user": "zoe", "n": 3}': '{"node": "<host>", "user": "<user>", "n": 3}',
    r'"trace": "a\n/home/bob/x.py:3\n  File \"/home/bob/y.py\", line 4"': (
        r'"trace": "a\n<path>/x.py:3\n  File \"<path>/y.py\", line 4"'
    ),
}


@pytest.mark.parametrize(("text", "expected"), [*zip(KEPT, KEPT, strict=True), *REPLACED.items()])
def test_kept_and_replaced(text, expected):
    assert scrub_text(text, ALICE) == expected


SAFE = """
GB/s tokens/s TFLOP/s a/b 1/2
NVIDIA H200 580.159.04 2.11.0+cu130 square root max min measured 0.95 1e-3 | , 95 % (n = 20)
[x](figures/a.svg) https://github.com/alice/x https://doi.org/10.1/root.5 /proc/stat N² ± µs
"""
SAFE_WORD = st.sampled_from(SAFE.split())
NAME = st.from_regex(r"[a-z][a-z0-9_-]{0,9}", fullmatch=True).filter(lambda name: name not in scrub.HOMES)
PIECES = st.one_of(
    SAFE_WORD,
    NAME,
    st.text(max_size=6),
    st.sampled_from(["/home/alice/", "/root", "/tmp/x", "alice", "x3001c0s13b0n0", "vm:12:13 [0]", "@", "\n", "File "]),
    st.sampled_from(["https://vm:8888/home/alice", "data:image/png;base64,AA/home", '"node": "', '"', ".", ":", "\\n"]),
    st.sampled_from(["<path>", "<host>", "<user>", "/usr/lib/x.py", 'File "/a b/c.py", line 3', "-I", "=", ">"]),
)
TEXT = st.lists(st.tuples(PIECES, st.sampled_from(["", "", " ", "/"])), max_size=12).map(
    lambda parts: "".join(piece + space for piece, space in parts)
)


@settings(deadline=None, max_examples=60)
@given(TEXT)
def test_what_is_scrubbed_has_no_findings_and_stays(text):
    once = scrub_text(text, ALICE)
    assert scrub_text(once, ALICE) == once
    assert not list(ALICE.changes(once))


@settings(deadline=None, max_examples=60)
@given(NAME, st.sampled_from(["/home/{}", "/Users/{}", "/gpfs/home/{}", "/export/home/{}"]), st.lists(NAME, max_size=3))
def test_no_home_is_left(user, home, rest):
    """Whoever the person, known to us or not, and whatever is around the path."""
    path = "/".join([home.format(user), *rest])
    for text in (path, f"see {path}.", f'"{path}"', f"x={path}:1", f"a,{path},b", f"\\n{path}\\n", f"-I {path}"):
        scrubbed = scrub_text(text, Private())
        assert home.format("") not in scrubbed and scrubbed.replace("<path>", "") == text.replace(path, "")


@settings(deadline=None, max_examples=60)
@given(NAME.filter(lambda name: Private().distinctive(name)))
def test_no_distinctive_name_is_left(name):
    for private in (Private(hosts=(name,)), Private(users=(name,))):
        for text in (name, f"{name}'s", f"a job of {name}", f"a_{name}.csv", f"{name}@", f"x,{name},y", f"[{name}]"):
            left = re.sub("<host>|<user>", "", scrub_text(text, private))
            assert not re.search(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", left)


def test_names_of_other_nodes_are_gathered():
    records = [{"provenance": {"node": "gpu-07.ibex.kaust.edu.sa"}}, {"hosts": ["lyra1"], "user": "zoe"}]
    private = gather(records, Private())
    assert private.users == ("zoe",) and set(private.hosts) == {"gpu-07", "gpu-07.ibex.kaust.edu.sa", "lyra1"}
    assert gather({"node": "<host>", "user": "<user>"}, private) == private


def test_only_known_fields_are_published(tmp_path):
    assert set(records.make({})) - {"provenance"} <= scrub.RECORD and set(machine.identity(())) == scrub.ENVIRONMENT
    assert set(provenance.collect(tmp_path)) <= scrub.PROVENANCE
    cluster = {"executor": "slurm", "cores": 8, "partition": "zoes", "setup": ["module use /home/zoe"]}
    told = {"commit": "c", "node": "n1", "home": "zoe", "cluster": cluster}
    shown = scrub.published(
        records.make({"reason": "see /home/zoe/x.py", "told": "zoe", "provenance": told}), Private()
    )
    assert shown["reason"] == "see <path>/x.py" and "zoe" not in str(shown)
    assert shown["provenance"] == {"commit": "c", "node": "<host>", "cluster": {"executor": "slurm", "cores": 8}}


def test_findings_name_file_line_and_kind(tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "a.json").write_text('{"n": 1,\n "node": "gpu-07",\n "error": "see /home/bob/x.py"}\n')
    (tmp_path / "clean.md").write_text("3 GB/s at [x](figures/x.svg)\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0/home/bob/x")
    (tmp_path / "alice.csv").write_text("a,b\n")
    assert find_private(tmp_path, ALICE) == [
        "alice.csv:0: alice",
        'records/a.json:2: "node": "gpu-07',
        "records/a.json:3: /home/bob/x.py",
    ]


def test_this_machine(tmp_path, monkeypatch):
    """A distinctive name is private, one that the project itself uses as a word is not on its own."""
    (tmp_path / "perfscribe").mkdir()
    (tmp_path / "perfscribe" / "a.py").write_text("roofline_ms = 1  # Flash")
    monkeypatch.setattr(scrub.platform, "node", lambda: "roofline")
    for variable, name in {"USER": "wanda17", "LOGNAME": "wanda17", "SLURMD_NODENAME": "kw60623"}.items():
        monkeypatch.setenv(variable, name)
    private = private_here(tmp_path)
    text = f"wanda17 on kw60623 drew a roofline of {tmp_path}/perfscribe/a.py; wanda17@roofline"
    assert scrub_text(text, private) == "<user> on <host> drew a roofline of <path>/a.py; <user>@<host>"
