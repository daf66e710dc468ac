"""What each method said of every rank, judged against where the ranks really were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from perfscribe.experiments.rank_methods.words import METHODS
from perfscribe.parallel import ranks

RIGHT, NOTHING, NO_LOCAL_RANK, LOCAL_WRONG = "right", "says nothing", "no local rank", "local rank wrong"


def truth(nodes: Sequence[int]) -> list[list[int]]:
    """(rank, world size, local rank) of every rank from the node of each."""
    return [[rank, len(nodes), local] for rank, (local, _, _) in enumerate(ranks.layout([str(n) for n in nodes]))]


def judge(said: Sequence[Any], nodes: Sequence[int]) -> str:
    """A method in a few words: right, says nothing, or what is wrong on how many ranks."""
    texts = [one for one in said if isinstance(one, str)]
    if texts:
        return texts[0]
    expected, count = truth(nodes), len(said)
    heard = [rank for rank in range(count) if said[rank] is not None]
    if not heard:
        return NOTHING
    lost = [rank for rank in heard if said[rank][:2] != expected[rank][:2]]
    if lost:
        tales = Counter("rank {} of {}".format(*said[rank][:2]) for rank in lost)
        silent = f", says nothing on {count - len(heard)}" if len(heard) < count else ""
        return f"wrong on {len(lost)} of {count} ({', '.join(tales)}){silent}"
    if len(heard) < count:
        return f"says nothing on {count - len(heard)} of {count}"
    if any(one[2] is None for one in said):
        return NO_LOCAL_RANK
    wrong = sum(one != right for one, right in zip(said, expected, strict=True))
    if not wrong:
        return RIGHT
    sharing = len(sharers([one[2] for one in said], nodes))
    return f"{LOCAL_WRONG} on {wrong} of {count}" + (f", {sharing} share GPUs" if sharing else "")


def sharers(local_ranks: Sequence[int], nodes: Sequence[int]) -> dict[int, list[int]]:
    """For each rank that would use another's GPU the other ranks on it."""
    users: dict[tuple[int, int], list[int]] = {}
    for rank, place in enumerate(zip(nodes, local_ranks, strict=True)):
        users.setdefault(place, []).append(rank)
    return {
        rank: [other for other in group if other != rank]
        for group in users.values()
        if len(group) > 1
        for rank in group
    }


def agreement(method: str, said: Mapping[str, Any]) -> str:
    """Which of the methods that say anything on this rank say the same as this one, and which do not."""
    heard = {name: one for name, one in said.items() if isinstance(one, list) and name != method}
    same = [METHODS[name] for name, one in heard.items() if one == said[method]]
    others = [f"{METHODS[name]}: rank {one[0]} of {one[1]}" for name, one in heard.items() if one != said[method]]
    parts = ["as " + ", ".join(same)] if same else []
    parts += ["unlike " + "; ".join(others)] if others else []
    return "; ".join(parts) or "no other says anything"
