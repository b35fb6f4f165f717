"""What a rank holds in memory, in four parts, and an error where it is more than the budget.

Counted are storages, each once, on any device: the *weights* (parameters and buffers of every
module that took part in a forward), their *gradients*, the *optimizer*'s state (with parameters of
its own that no module has: FP32 masters), and the *activations* that forwards have saved for their
backwards. The sum is looked at where it peaks as a rule: at the end of each forward, the start of
each backward, and the end of each optimizer step.

Not counted: what lives only inside an operation, what a backward computes on its way (with
activation checkpointing, what it computes again), what saved-tensor hooks of the learner's own
keep, and the buffers of a communication library.

Cost, only in a run with ``memory=``: some microseconds a saved tensor and module, and a pass over
all tensors at each check. `torch.func.grad` and its like refuse to run under saved-tensor hooks:
here they do so, too.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from labkit.runtime import private
from labkit.runtime.budget import Overrun
from labkit.runtime.failures import OutOfMemory
from labkit.trace.log import Log
from labkit.trace.mark import tensors_in
from labkit.trace.memory import Held, write

__all__ = ["Holdings", "counting"]


class Holdings:
    """What this process holds; `check` raises where it is more than `limit`.

    Parameters
    ----------
    rank : its global rank
    limit : bytes; infinite: count only
    log : where each check leaves four memory marks; None: nowhere
    """

    def __init__(self, rank: int, limit: float = math.inf, log: Log | None = None) -> None:
        self.rank, self.limit, self.log = rank, limit, log
        # By identity: a class may define equality as it likes.
        self._modules: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
        self._parameters: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()
        self._optimizers: WeakValueDictionary[int, Optimizer] = WeakValueDictionary()
        self._saved: WeakSet[_Saved] = WeakSet()
        self._main = threading.get_ident()
        # Forwards that are under way: the module, and the exception that was being handled then.
        self._forwards: list[tuple[nn.Module, BaseException | None]] = []

    def check(self, when: str) -> None:
        """Count, leave marks, and compare with the limit.

        Raises
        ------
        OutOfMemory : the four parts together are more than `limit`
        """
        now = self.held()
        if self.log is not None:
            write(self.log, now)
        if now.total > self.limit:
            raise OutOfMemory(Overrun(now, int(self.limit), when))

    def held(self) -> Held:
        """What is held at this moment; what two parts share counts for the first of them."""
        seen: set[int] = set()
        weights = self._weights()
        others = [p for p in self._parameters_of_optimizers() if p is not None]
        return Held(
            self.rank,
            weights=_size(weights, seen),
            gradients=_size((p.grad for p in (*weights, *others) if p.is_leaf), seen),
            optimizer=_size((*self._states(), *others), seen),
            activations=_size((s.tensor for s in list(self._saved)), seen),
        )

    def _weights(self) -> list[Tensor]:
        found: list[Tensor | None] = []
        for module in list(self._modules.values()):
            found += [*module._parameters.values(), *module._buffers.values()]
        return [t for t in (*found, *self._parameters.values()) if t is not None]

    def _parameters_of_optimizers(self) -> Iterator[Tensor]:
        for optimizer in list(self._optimizers.values()):
            for group in optimizer.param_groups:
                yield from group["params"]

    def _states(self) -> Iterator[Tensor]:
        for optimizer in list(self._optimizers.values()):
            yield from tensors_in(optimizer.state)

    # Hooks

    def before_forward(self, module: nn.Module, args: Any) -> None:
        if id(module) not in self._modules:
            # All of it: a weight may be used without a call of the module that owns it.
            self._modules.update((id(part), part) for part in module.modules())
        if threading.get_ident() == self._main:
            self._forwards.append((module, sys.exception()))

    def after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() != self._main:
            return
        handled: BaseException | None = None
        for i in reversed(range(len(self._forwards))):
            if self._forwards[i][0] is module:
                handled = self._forwards[i][1]
                del self._forwards[i:]
                break
        failed = sys.exception() is not handled  # then this is called on the error's way out
        if not self._forwards and not failed:
            self.check("at the end of a forward")

    def before_backward(self) -> None:
        if threading.get_ident() == self._main:
            self.check("at the start of a backward")

    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer
        self.check("at the end of an optimizer step")

    def pack(self, tensor: Tensor) -> _Saved:
        base = tensor if tensor._base is None else tensor._base
        if isinstance(base, nn.Parameter):
            self._parameters[id(base)] = base
        saved = _Saved(tensor)
        self._saved.add(saved)
        return saved


class _Saved:
    """A tensor that a graph keeps for its backward; autograd drops this object with it."""

    __slots__ = ("__weakref__", "tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        # A node that saves its own output must not be kept alive by it.
        self.tensor = tensor if tensor.grad_fn is None else tensor.detach()
        self.version = tensor._version

    def unpack(self) -> Tensor:
        # Under hooks torch no longer notices a change in place; without a budget it would.
        if self.tensor._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: a tensor of shape {list(self.tensor.shape)} is at version "
                f"{self.tensor._version}; expected version {self.version}"
            )
        return self.tensor


@contextmanager
def counting(rank: int, limit: float = math.inf, log: Log | None = None) -> Iterator[Holdings]:
    """Within it, this process counts what it holds; parameters as of `Holdings`."""
    holdings = Holdings(rank, limit, log)
    with ExitStack() as stack:
        for handle in (
            register_module_forward_pre_hook(holdings.before_forward),
            # Also when a forward fails: it must not count as under way for ever.
            register_module_forward_hook(holdings.after_forward, always_call=True),
            register_optimizer_step_post_hook(holdings.after_step),
        ):
            stack.callback(handle.remove)
        stack.enter_context(private.before_backward(holdings.before_backward))
        stack.enter_context(saved_tensors_hooks(holdings.pack, _Saved.unpack))
        yield holdings


def _size(tensors: Iterable[Tensor | None], seen: set[int]) -> int:
    """Bytes of the storages of `tensors` that are not in `seen` yet; they are put there."""
    size = 0
    for tensor in tensors:
        if tensor is None:
            continue
        plain = type(tensor) in _PLAIN and tensor.layout is torch.strided
        for part in (tensor,) if plain else _inside(tensor):
            storage = part.untyped_storage()
            if storage._cdata not in seen and storage.device.type != "meta":
                seen.add(storage._cdata)
                size += storage.nbytes()
    return size


_PLAIN = (Tensor, nn.Parameter)


def _inside(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors that a tensor of another kind is made of."""
    if is_traceable_wrapper_subclass(tensor):  # a DTensor, for one: what this rank has of it
        names, _ = tensor.__tensor_flatten__()
        for part in (getattr(tensor, name) for name in names):
            if isinstance(part, Tensor):  # a DTensor names its mesh, too
                yield from _inside(part)
    elif tensor.layout is torch.sparse_coo:  # the gradient of a sparse embedding
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout is torch.strided:
        yield tensor
