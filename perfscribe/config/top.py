"""Top-level keys of the config, without its experiments."""

from perfscribe.config.keys import Form, Key, choice, flag, mapping, number, section, text, texts, whole

NO_SITES = ("notes",)  # folders of report/ that are not sites
CHAPTER = Form(r"^[A-Za-z0-9][A-Za-z0-9_/-]*$", "a chapter's name, or a folder of this checkout")
NAME = Form(r"^[A-Za-z0-9][A-Za-z0-9_.@+-]*$", "one name (text of letters, digits and _.@+-; lists are not taken)")
PATH = Form(r"^\S(.*\S)?$", "a path")
LINE = Form(r"^[^\x00-\x1f\x7f]*\S[^\x00-\x1f\x7f]*$", "one line of text")
LINE_OR_NONE = Form(r"^[^\x00-\x1f\x7f]*$", "one line of text")
SITE = Form(
    rf"^(?!({'|'.join(NO_SITES)})$)[a-z0-9][a-z0-9_-]{{0,39}}$",
    "a name that no folder of the project has (text of lower-case letters, digits, - and _)",
)
FEATURES = Form(r"^[A-Za-z0-9_.:&|*()\[\],=@+-]+$", "features as for sbatch's --constraint, without spaces")
NODE = Form("^[A-Za-z0-9][A-Za-z0-9._-]*$", "the name of a node")
SUBJECT = Form("^[a-z][a-z0-9_-]{0,39}$", "text of lower-case letters, digits, - and _ that begins with a letter")
VARIABLE = Form("^[A-Za-z_][A-Za-z0-9_]*$", "text of letters, digits and _ that begins with no digit")


def name(meaning: str) -> Key:
    """Key for a name that the cluster knows, or null."""
    return text(meaning, NAME, None)


def path(meaning: str) -> Key:
    """Key for a path, or null."""
    return text(meaning, PATH, None)


TOP = dict(
    site=text(
        "whose results/<site>/ and report/<site>/; local: your own, which git ignores; a published one is redrawn",
        SITE,
        "local",
    ),
    preset=choice(
        "tiny | cpu | gpu; auto: gpu where a CUDA device is found, else cpu", ["auto", "tiny", "cpu", "gpu"], "auto"
    ),
    chapters=texts(
        "chapters of the report: cs336 (2025) | cs336-2026 | polaris | fsdp | a folder with a chapter of your own; "
        "experiments that none of them shows are not measured",
        CHAPTER,
        ["cs336", "polaris", "fsdp"],
        empty=False,
    ),
    subject=path(
        "tests/adapters.py of your checkout of CS336's assignment 2: your code is measured and handed in; null: ours"
    ),
    subjects=mapping("several such files by name, each compared with ours, for teaching staff", SUBJECT, PATH),
    seed=whole("of all random weights and data", 0, 4_294_967_295, 0),
    budget_minutes=number(
        "minutes after which no further cell is started; null: no limit", 0, 10_080, None, above=True
    ),
    share_machine=flag("jobs that need one GPU each run side by side, one on each; false: one job at a time", True),
    on_identity_change=choice(
        "finished cells after a change of GPU, driver or libraries: keep (marked) | remeasure",
        ["keep", "remeasure"],
        "keep",
    ),
    tools=section(
        "Programs that measuring needs; relative paths begin at the checkout, ~ at home",
        nsys=path("path of Nsight Systems' nsys; null: on PATH, below CUDA_HOME, in NVIDIA's usual folders"),
        nsys_libraries=path("folder with shared libraries that nsys lacks on this machine; null: none"),
    ),
    workshop=section(
        "What the FSDP workshop's experiments train on and begin with; relative paths begin at the checkout, ~ at home",
        squad=path("folder with train*.json and dev*.json of SQuAD v1.1; null: generated questions"),
        weights=path("folder with the model's weights | hub: fetch them; null: random ones"),
        tokenizer=path("folder with tokenizer.json; null: that of the weights, else one trained on the rows"),
    ),
    cluster=section(
        "Jobs under `snakemake --profile slurm report` and --profile pbs; ignored on one machine",
        account=name("who pays for them; null: the cluster's default"),
        partition=name("partition or queue; null: the cluster's default"),
        time_minutes=whole(
            "time limit of a job; a job that reaches it is resubmitted, twice at most, and resumes", 1, 43_200, 60
        ),
        gpus_per_node=whole("GPUs of a node; 0: none, and preset auto is cpu", 0, 64, 0),
        max_nodes=whole(
            "most nodes of a job; null: as many as the partition has, if that is known, else 1", 1, 1024, None
        ),
        constraint=text("features that nodes must have, as for sbatch; null: none", FEATURES, None),
        qos=name("quality of service; null: the cluster's default"),
        cores=whole("cores of a measuring job on each node; null: all where it is exclusive, else one", 1, 4096, None),
        mem_mb=whole("memory of a job on each node, in MB; null: the partition's default", 1, 100_000_000, None),
        max_jobs=whole("jobs at the same time, and measuring jobs that all cells are dealt out to", 1, 10_000, 20),
        exclusive=flag("measuring jobs share their nodes with no other job; one-GPU jobs may", True),
        nodes=texts("names of the nodes to measure on, in turn; []: any", NODE, []),
        environment=mapping("variables of all jobs, such as {NCCL_SOCKET_IFNAME: hsn0}", VARIABLE, LINE_OR_NONE),
        setup=texts('lines of shell that each job runs first, such as ["module load cuda"]', LINE, []),
    ),
)
