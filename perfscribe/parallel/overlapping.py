"""Groups of gradients that are averaged while backward goes on: the hooks, and the order in which groups are sent."""

from __future__ import annotations

import abc
import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from perfscribe.parallel.averaging import Averager, Copies, Pending, contiguous
from perfscribe.parallel.launching import LaunchingThread, SideStream, Streams, launching_thread, on_stream
from perfscribe.parallel.process_group import backends
from perfscribe.parallel.replicas import DataParallel

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


class Sending:
    """The gradients of a group on their way to their averages.

    contribution: gives a parameter's gradient, or what stands for it. stream: on which gradients are computed, where
    another thread sends them; side: on which their collective runs, None: the backend's own.
    """

    __slots__ = (
        "_averager",
        "_contribution",
        "_flatten",
        "_gradients",
        "_indices",
        "_parameters",
        "_pending",
        "error",
        "side",
        "stream",
    )

    def __init__(
        self,
        averager: Averager,
        contribution: Callable[[nn.Parameter], Tensor],
        parameters: list[nn.Parameter],
        indices: list[int],
        flatten: bool,
    ) -> None:
        self._averager, self._contribution, self._flatten = averager, contribution, flatten
        self._parameters, self._indices = parameters, indices
        self._gradients: list[Tensor] = []
        self._pending: Pending | None = None
        self.error: BaseException | None = None
        self.stream: torch.cuda.Stream | None = None
        self.side: SideStream | None = None

    def start_or_note(self) -> None:
        """start(), but an error is noted."""
        try:
            self.start()
        except BaseException as error:
            self.error = error

    def start(self) -> None:
        """Begin the average, behind what the stream has been given so far."""
        if self.side is None or self.stream is None:
            with on_stream(self.stream):
                self._pending = self._averager.send(*self._prepared())
            return
        # What has to be made for it is made on the stream of the computation, whose memory it takes.
        flat = self._flatten and len(self._parameters) > 1
        with nullcontext() if not flat and all(map(_can_be_sent, self._parameters)) else on_stream(self.stream):
            sent, copies = self._prepared()
        self.side.take_over(self.stream)
        self._pending = self._averager.send(sent, copies, on_current_stream=True)

    def _prepared(self) -> tuple[list[Tensor], Copies]:
        self._gradients = [self._contribution(parameter) for parameter in self._parameters]
        return self._into_flat() if self._flatten and len(self._gradients) > 1 else contiguous(self._gradients)

    def _into_flat(self) -> tuple[list[Tensor], Copies]:
        """A flat copy, in whose parts the gradients lie from now on, so that nothing has to be copied back.

        Those in another order than their elements' stay, and are copied back.
        """
        flat, parts = self._averager.flat(self._gradients)
        copies: Copies = []
        for i, (gradient, part) in enumerate(zip(self._gradients, parts, strict=True)):
            if not gradient.is_contiguous():
                copies.append((gradient, part))
                continue
            self._gradients[i] = part
            if self._parameters[i].grad is gradient:
                self._parameters[i].grad = part
        return [flat], copies

    def end(self, used: Sequence[bool]) -> None:
        """Wait for the average, which is the gradient of the parameters that some rank used."""
        assert self._pending is not None
        self._pending.wait(self._averager.around)
        for i, parameter, gradient in zip(self._indices, self._parameters, self._gradients, strict=True):
            # Where no rank used it these are the zeros sent for it, and its gradient stays None.
            if used[i] and parameter.grad is None:
                parameter.grad = gradient


def _can_be_sent(parameter: nn.Parameter) -> bool:
    """Whether its gradient is there and can be sent from where it lies."""
    gradient = parameter.grad
    return gradient is not None and gradient.layout == torch.strided and gradient.is_contiguous()


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
