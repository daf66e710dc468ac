"""A group of gradients on its way to its averages, started by backward's thread or by another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from perfscribe.distributed.averaging import Averager, Copies, Pending, contiguous
from perfscribe.distributed.launching import SideStream, on_stream


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
