"""Collectives as all_reduce measured them, over any number of ranks; the network between nodes where that was."""

from __future__ import annotations

from collections.abc import Iterable

from perfscribe import tables as t
from perfscribe.node_network import ALL_REDUCE, Network
from perfscribe.records import Record
from perfscribe.scaling.collectives import PHASES, Call, CollectiveFit, fits
from perfscribe.training_prediction import DEFAULT, Links, Ring

# Whose links a time is of.
OWN, ASSUMED, NETWORK = "this machine's", "assumed as here", "measured network"


def calls_of(records: Iterable[Record], operation: str, backend: str) -> list[Call]:
    """What was measured of a collective, over the links that the backend chose."""
    wanted = {"operation": operation, "backend": backend, "transport": DEFAULT}
    return [
        Call(record.factors["world_size"], float(record.values["message_bytes"]), t.summary(record, "time_ms").median)
        for record in records
        if record.ok and record.factors["world_size"] > 1 and record.has(**wanted)
    ]


def logged(records: Iterable[Record], operation: str, backend: str) -> str:
    """The algorithms that NCCL says it took, of all sizes; blank where nothing was said."""
    wanted = {"operation": operation, "backend": backend, "transport": DEFAULT}
    own = [record for record in records if record.ok and record.has(**wanted)]
    return ", ".join(dict.fromkeys(str(record.values["algorithm"]) for record in own if "algorithm" in record.values))


class ModelledLinks(Links):
    """What a collective costs among any number of ranks, by the algorithm that scaling.collectives.fits puts first.

    below: only what was measured among fewer ranks counts. latency_only: bytes cost nothing.
    """

    def __init__(
        self,
        records: Iterable[Record],
        network: Network | None = None,
        below: int | None = None,
        latency_only: bool = False,
    ) -> None:
        self._records = [r for r in records if below is None or r.factors["world_size"] < below]
        self._network, self._latency_only = network or Network({}), latency_only
        self._fits: dict[tuple[str, str], CollectiveFit | None] = {}
        self._alike: dict[tuple[int | None, bool], ModelledLinks] = {}

    def alike(self, below: int | None = None, latency_only: bool = False) -> ModelledLinks:
        """The same records, taken otherwise."""
        key = below, latency_only
        if key not in self._alike:
            self._alike[key] = ModelledLinks(self._records, self._network, *key)
        return self._alike[key]

    def fit(self, operation: str, backend: str) -> CollectiveFit | None:
        """The collective's model; None where too few calls were measured."""
        key = operation, backend
        if key not in self._fits:
            said = logged(self._records, operation, backend)
            found = fits(operation, calls_of(self._records, operation, backend), said)
            self._fits[key] = found[0] if found else None
        return self._fits[key]

    def most_ranks(self, backend: str) -> int:
        """The largest count among which collectives were measured: further ranks may be on other nodes."""
        counts = [n for name in PHASES if (one := self.fit(name, backend)) is not None for n in one.counts]
        return max(counts, default=1)

    def ring(self, operation: str, backend: str, ranks: int, transport: str = DEFAULT) -> Ring | None:
        """Latency and time a byte of one collective; half an all-reduce's where there is no other."""
        for taken, part in ((operation, 1.0), (ALL_REDUCE, 0.5)):
            fit = self.fit(taken, backend)
            if fit is not None:
                per_byte = part * self.ms_per_message_byte(fit, backend, ranks)
                return Ring(part * fit.latency_ms(ranks), 0.0 if self._latency_only else per_byte, ranks)
        return None

    def ms_per_message_byte(self, fit: CollectiveFit, backend: str, ranks: int) -> float:
        """Time that a byte of the whole array adds; beyond this machine's ranks not less than the network's."""
        own = fit.ms_per_message_byte(ranks)
        network = self._network.bus_gb_per_s.get(backend)
        if network is None or ranks <= self.most_ranks(backend) or fit.ms_per_byte <= 0:
            return own
        return own * max(1.0, (fit.bus_gb_per_s or 0.0) / network)

    def time_ms(self, fit: CollectiveFit, backend: str, ranks: int, message_bytes: float) -> float:
        """Of one call."""
        return fit.latency_ms(ranks) + self.ms_per_message_byte(fit, backend, ranks) * message_bytes

    def named(self, backend: str, ranks: int) -> str:
        """Which links a row's time is of."""
        if ranks <= self.most_ranks(backend):
            return OWN
        return NETWORK if backend in self._network.bus_gb_per_s else ASSUMED
