"""Groups of gradients that are averaged while backward goes on: the hooks, and the order in which groups are sent."""

from __future__ import annotations

import abc
import functools
import sys
import weakref
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from perfscribe.distributed.launching import LaunchingThread, Streams, launching_thread
from perfscribe.distributed.process_group import backends
from perfscribe.distributed.replicas import DataParallel
from perfscribe.distributed.sending import Sending

_IN_NONE = sys.maxsize  # in place of a group's number: sent after all groups


class OverlappingDataParallel(DataParallel):
    """Sends a group's gradients by an asynchronous all-reduce as soon as all of them, and all groups before, are ready.

    Collectives match by order, so all ranks send the groups in the same order, that of _grouped(), however autograd
    orders its work (Li et al. 2020, section 3.2.3). What backward left unsent is sent by finish, zeros for what this
    rank did not use; then the ranks agree on what any of them used. Parameters that no rank has ever used are in no
    group from then on: nothing waits for them or carries zeros for them. Should one be used after all, finish sends
    its gradient alone, and the groups are made anew with it.

    Where NCCL serves the gradients, collectives are started by a thread (see launching.LaunchingThread), so that
    backward goes on meanwhile; gloo works on threads of its own, for which backward's processors are needed.
    launch_thread decides otherwise. What fails on the thread is raised by finish.

    A second backward without a finish between (outside no_sync) ends the first one's averages before it adds to them;
    that is a collective on all ranks, so where ranks use different parameters each backward needs its own finish.
    """

    _flatten = False

    def __init__(
        self, module: nn.Module, *, group: dist.ProcessGroup | None = None, launch_thread: bool | None = None
    ) -> None:
        self._launch_thread = launch_thread
        self._thread: LaunchingThread | None = None
        super().__init__(module, group=group)
        self._streams = Streams()
        self._used_so_far = [False] * len(self._trainable)
        self._in_groups = [True] * len(self._trainable)  # before the first backward nothing is known
        self._make_groups()
        handles = _watch(weakref.ref(self), self._trainable)
        self._remove_hooks = weakref.finalize(self, _remove, handles)
        self._remove_hooks.atexit = False

    def release(self) -> None:
        """Let go of the module and take the hooks off its parameters."""
        self._settle()
        super().release()
        self._remove_hooks()

    def _averaging_group(self, group: dist.ProcessGroup) -> dist.ProcessGroup:
        """With a thread its own one."""
        if self._launch_thread is None:
            self._launch_thread = "nccl" in backends(group).values()
        if self._launch_thread:
            self._thread = launching_thread(group)
            return self._thread.group
        return group

    def _settle(self) -> None:
        if self._thread is not None:
            self._thread.settle()

    @abc.abstractmethod
    def _grouped(self, parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
        """The groups, in the order in which they are sent."""

    def _make_groups(self) -> None:
        index_of = {parameter: i for i, parameter in enumerate(self._trainable)}
        self._groups = self._grouped([p for p, is_in in zip(self._trainable, self._in_groups, strict=True) if is_in])
        self._indices = [[index_of[parameter] for parameter in group] for group in self._groups]
        self._devices = [group[0].device for group in self._groups]
        self._group_at = [_IN_NONE] * len(self._trainable)
        for number, indices in enumerate(self._indices):
            for i in indices:
                self._group_at[i] = number
        self._begin()

    def _begin(self) -> None:
        """Nothing of a backward has been seen or sent."""
        self._waiting = [len(indices) for indices in self._indices]  # gradients that are not ready, by group
        self._ready = [False] * len(self._trainable)
        self._sent_groups = 0
        self._under_way: list[Sending] = []

    def _before_accumulation(self, index: int) -> None:
        """A gradient is about to be added to that of a parameter, which must not be under way then."""
        if self._group_at[index] < self._sent_groups:
            self._finish()

    def _after_accumulation(self, index: int) -> None:
        """The gradient of a parameter is complete. Runs once a parameter on the thread that launches the backward."""
        group = self._group_at[index]
        if group == _IN_NONE or not self._synchronising or self._ready[index]:
            return
        self._ready[index] = True
        self._waiting[group] -= 1
        if group == self._sent_groups and not self._waiting[group]:
            self._send_full_groups()

    def _send_full_groups(self) -> None:
        while self._sent_groups < len(self._groups) and not self._waiting[self._sent_groups]:
            self._send_next_group()

    def _send_next_group(self) -> None:
        number = self._sent_groups
        self._sent_groups += 1
        self._send(self._groups[number], self._indices[number], self._devices[number])

    def _send(self, parameters: list[nn.Parameter], indices: list[int], device: torch.device) -> None:
        sending = Sending(self.averager, self._contribution, parameters, indices, self._flatten)
        self._under_way.append(sending)
        if self._thread is None:
            # Hooks record nothing but in a backward with create_graph.
            with torch.no_grad() if torch.is_grad_enabled() else nullcontext():
                sending.start()
        else:
            sending.stream, sending.side = self._streams.current(device), self._thread.side(device)
            self._thread.submit(sending.start_or_note)

    @torch.no_grad()
    def _finish(self) -> bool:
        try:
            while self._sent_groups < len(self._groups):
                self._send_next_group()
            self._require_started()
            used = self._agree()
            late = [i for i, group in enumerate(self._group_at) if group == _IN_NONE and used[i]]
            for i in late:
                self._send([self._trainable[i]], [i], self._trainable[i].device)
            if late:
                self._require_started()
        finally:
            self._join()
            under_way = self._under_way
            self._begin()
        for sending in under_way:
            sending.end(used)
        self._learn(used)
        return any(used)

    def _join(self) -> None:
        """Let the current stream wait for what the thread has started, all of which is known here."""
        if self._thread is not None:
            self._thread.settle()
            with self.averager.around("wait"):
                self._thread.join()

    def _require_started(self) -> None:
        """Wait for the thread, and raise what failed on it."""
        self._settle()
        for sending in self._under_way:
            if sending.error is not None:
                raise sending.error

    def _learn(self, used: Sequence[bool]) -> None:
        """Keep in the groups what some rank has used so far; all ranks know the same."""
        if not self.averager.enabled or not any(used):
            return
        self._used_so_far = [before or now for before, now in zip(self._used_so_far, used, strict=True)]
        if self._used_so_far != self._in_groups:
            self._in_groups = self._used_so_far
            self._make_groups()


def _watch(wrapper: weakref.ref[OverlappingDataParallel], parameters: Sequence[nn.Parameter]) -> list[RemovableHandle]:
    """Hooks that hold the wrapper weakly: a wrapper that nobody holds any more leaves its module alone."""
    handles = []
    for index, parameter in enumerate(parameters):
        handles.append(parameter.register_hook(functools.partial(_before, wrapper, index)))
        handles.append(parameter.register_post_accumulate_grad_hook(functools.partial(_after, wrapper, index)))
    return handles


def _before(wrapper: weakref.ref[OverlappingDataParallel], index: int, _: Tensor) -> None:
    found = wrapper()
    if found is not None:
        found._before_accumulation(index)


def _after(wrapper: weakref.ref[OverlappingDataParallel], index: int, _: Tensor) -> None:
    found = wrapper()
    if found is not None:
        found._after_accumulation(index)


def _remove(handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
