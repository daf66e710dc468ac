"""Tables, figure and answers of rank methods."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.rank_methods import answers, columns, drawings, rows
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = (
    "polaris.rank_methods",
    "polaris.rank_launches",
    "polaris.rank_placements",
    "polaris.rank_bindings",
)
FIGURES = ("polaris.rank_bindings",)

METHODS_NOTE = (
    "Ranks on one machine; each row is what the method says on that rank. Under an MPI launcher the variables "
    "PALS_*, PMI_*, OMPI_* and SLURM_* are taken out of each rank's environment after MPI_Init, and torch.distributed "
    "gets what MPI says; the launcher's own variables are read before that. Without GPUs rank mod devices takes as "
    "many devices as there are ranks. Cores granted: sched_getaffinity."
)
TRAINING_NOTE = (
    "Training: the homework's nn.Transformer by data parallelism (gradients averaged in buckets during backward, Adam "
    "by PyTorch's fused kernel), a batch for each rank, all epochs, after warm-up steps; host clock, the device waited "
    "for. One run a method. Published: write-ups 000 (COMM_TYPE_SHARED) and 001 (rank mod devices), four A100 of "
    "Polaris, without warm-up; beside rows of the same sizes, samples and epochs."
)
LAUNCHES_NOTE = (
    "Right: rank, world size and local rank of every rank are those of the launch. Share GPUs: ranks of one node that "
    "the method gives the same local rank. What is not run here was recorded elsewhere or made from documentation, as "
    "the source says; variables that no method reads are left out."
)
PLACEMENTS_NOTE = (
    "From two of the recordings. The right local rank counts the ranks of a node in the order of global ranks."
)
BINDINGS_NOTE = (
    "Expected mask: the cores asked for as bits. Granted mask: sched_getaffinity of the rank. Local rank = GPU. "
    "Anti-affine: none of the rank's cores is among those nearest to its GPU; nearest cores by NVML, those of Polaris "
    "by ALCF's guide. Polaris: list:0,1:8,9:16,17:24,25 is the homework's, list:24:16:8:0 the guide's; masks published "
    "by write-up 000."
)
CAPTION = (
    "Cores that each rank was granted (asked for, where it did not run here), over the cores nearest to the GPU of the "
    "same number. Anti-affine ranks reach their GPU through another NUMA node."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Every rank by every method; verdicts by launch; placements rank by rank; bindings."""
    of = records["rank_methods"]
    return [
        t.make(
            TABLES[0],
            "Ranks as each method finds them",
            rows.by_rank(of),
            columns.by_rank(),
            [METHODS_NOTE, TRAINING_NOTE],
        ),
        t.make(TABLES[1], "Methods under launchers", rows.by_launch(of), columns.by_launch(), [LAUNCHES_NOTE]),
        t.make(TABLES[2], "Local ranks by placement", rows.by_placement(of), columns.by_placement(), [PLACEMENTS_NOTE]),
        t.make(TABLES[3], "Binding of ranks to cores", rows.by_binding(of), columns.by_binding(), [BINDINGS_NOTE]),
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Which methods are right where; when the modulus fails; what training takes; whether bindings are near."""
    by_rank, launches, placements, bound = (tables[name].ok for name in TABLES)
    return [
        find("polaris.rank_methods", TABLES[1:2], lambda: answers.methods(launches)),
        find("polaris.rank_placement", TABLES[1:3], lambda: answers.placement(placements, launches)),
        find("polaris.rank_training", TABLES[:1], lambda: answers.training(by_rank)),
        find("polaris.rank_binding", TABLES[3:], lambda: answers.bindings(bound)),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Bindings over the GPUs' nearest cores."""
    rows_of = tables[TABLES[3]].ok
    panels = max(1, rows_of.groupby(["machine", "cpu_bind"]).ngroups)
    draw = partial(drawings.bindings, rows=rows_of)
    return [f.Figure(FIGURES[0], CAPTION, draw, (7.0, 0.9 + 1.15 * panels))]
