"""A ledger of live tensors, on which memory models replay their allocations."""

from dataclasses import dataclass

Items = dict[str, int]


@dataclass(eq=False)
class Held:
    """One live tensor: the item under which it is counted, and its bytes."""

    item: str
    n_bytes: int


class Ledger:
    """Live bytes by item, now and at the highest total so far.

    granularity_bytes: tensors are rounded up to multiples of it (512 in PyTorch's CUDA allocator).
    """

    def __init__(self, granularity_bytes: int = 1) -> None:
        self.granularity_bytes = granularity_bytes
        self.total_bytes = 0
        self.peak_bytes = 0
        self._live: Items = {}
        self._peak: Items = {}

    @property
    def live(self) -> Items:
        """Bytes by item now."""
        return _nonzero(self._live)

    @property
    def peak(self) -> Items:
        """Bytes by item when the total was highest."""
        return _nonzero(self._peak)

    def new(self, item: str, n_bytes: int) -> Held:
        """Allocate a tensor."""
        rounded = -(-n_bytes // self.granularity_bytes) * self.granularity_bytes
        self._live[item] = self._live.get(item, 0) + rounded
        self.total_bytes += rounded
        if self.total_bytes > self.peak_bytes:
            self.peak_bytes = self.total_bytes
            self._peak = dict(self._live)
        return Held(item, rounded)

    def forget_peak(self) -> None:
        """Restart the search for the peak from what is live now."""
        self.peak_bytes = self.total_bytes
        self._peak = dict(self._live)

    def free(self, *tensors: Held) -> None:
        """Free tensors; freeing one twice has no effect."""
        for tensor in tensors:
            self._live[tensor.item] = self._live.get(tensor.item, 0) - tensor.n_bytes
            self.total_bytes -= tensor.n_bytes
            tensor.n_bytes = 0


def _nonzero(items: Items) -> Items:
    return {item: n_bytes for item, n_bytes in items.items() if n_bytes}
