"""Optimizer state of all ranks brought together on each: numbers and texts as JSON, tensors as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from perfscribe.distributed.broadcasting import broadcast_all
from perfscribe.distributed.process_group import message_device

State = dict[str, Any]  # of one parameter: tensors and plain values by name
Schema = dict[str, dict[str, Any]]  # what a State holds, without the tensors' contents


def gather_states(states: Mapping[int, Mapping[str, Any]], group: dist.ProcessGroup) -> dict[int, State]:
    """The states of all ranks, on each rank, in the order of the parameters' indices; tensors as copies on the CPU.

    states: this rank's, by index of the parameter; no two ranks have the same. One state at a time passes through the
    device that the group sends from.
    TypeError, on all ranks: a state holds something else than tensors and what JSON can say.
    """
    schemas = _schemas_of_all_ranks({index: _schema(state) for index, state in states.items()}, group)
    owners = {int(index): owner for owner, schema in enumerate(schemas) for index in schema}
    gathered = {}
    for index, owner in sorted(owners.items()):
        gathered[index] = _gather_one(schemas[owner][str(index)], states.get(index, {}), owner, group)
    return gathered


def _gather_one(schema: Schema, mine: Mapping[str, Any], owner: int, group: dist.ProcessGroup) -> State:
    """One parameter's state; mine is empty on all ranks but the owner."""
    state: State = {}
    for name, entry in schema.items():
        if "value" in entry:
            state[name] = entry["value"]
            continue
        place = message_device(group)
        if name in mine:
            sent = mine[name].detach().to(place, copy=True, memory_format=torch.contiguous_format)
        else:
            sent = torch.empty(entry["shape"], dtype=getattr(torch, entry["dtype"]), device=place)
        broadcast_all([(sent, owner)], group)
        state[name] = sent.cpu()
    return state


def _schema(state: Mapping[str, Any]) -> Schema:
    schema: Schema = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            schema[name] = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        elif value is None or isinstance(value, bool | int | float | str):
            schema[name] = {"value": value}
        else:
            schema[name] = {"refused": type(value).__name__}
    return schema


def _schemas_of_all_ranks(mine: Mapping[int, Schema], group: dist.ProcessGroup) -> list[dict[str, Schema]]:
    text = json.dumps(mine).encode()
    place = message_device(group)
    length = torch.tensor([len(text)], dtype=torch.int64, device=place)
    lengths = [torch.empty_like(length) for _ in range(dist.get_world_size(group))]
    dist.all_gather(lengths, length, group=group)
    me = dist.get_rank(group)
    texts = [torch.empty(int(n), dtype=torch.uint8, device=place) for n in lengths]
    texts[me] = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(place)
    broadcast_all([(sent, rank) for rank, sent in enumerate(texts)], group)
    schemas = [json.loads(bytes(sent.tolist())) for sent in texts]
    _require_sendable(schemas)
    return schemas


def _require_sendable(schemas: list[dict[str, Schema]]) -> None:
    for rank, schema in enumerate(schemas):
        for index, state in schema.items():
            for name, entry in state.items():
                if "refused" in entry:
                    raise TypeError(
                        f"state {name} of parameter {index} (rank {rank}) is a {entry['refused']}:"
                        " expected a tensor, number, text or None"
                    )
