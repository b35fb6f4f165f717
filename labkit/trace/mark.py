"""Spans round a module's forward and its backward, without a line changed in the module.

The forward is what the module's hooks enclose. The backward begins when the gradient of its output
is there, and ends when that of its input is; a module whose input needs none, as a first layer,
ends with the gradient of its last parameter. Hooks sit on the graph and on tensors: the backward
hooks of `nn.Module` fire before the backward of such a first layer, and refuse tensors that are
changed in place.

In a paced run the backward's seconds are over before the first of the module's gradients is handed
on. What data parallelism sends then, it sends after the layer's time, as it would on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from labkit.trace.span import current, span

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Mark", "mark", "tensors_in"]


def mark(
    module: nn.Module, name: str, forward: float | None = None, backward: float | None = None
) -> Mark:
    """Put spans ``forward name`` and ``backward name`` round what `module` does from here on.

    ::

        for i, layer in enumerate(model):
            mark(layer, f"layer {i}", forward=0.02, backward=0.04)

    Spans do nothing outside a recording. A module that is called several times has spans for every
    call. Not for modules that are compiled or scripted.

    Parameters
    ----------
    module : also one that holds others; those may be marked, too
    name : what it is called in the trace
    forward, backward : seconds, where durations are set or paced; None: the span says none

    Returns
    -------
    Mark : ``.remove()`` takes the spans away again

    Raises
    ------
    TypeError : what is marked is no module, `name` is no text, or seconds are no number
    ValueError : seconds that are negative or not finite
    """
    if not hasattr(module, "register_forward_pre_hook"):
        raise TypeError(
            f"mark takes a module, such as model.layers[0], not {type(module).__name__}"
        )
    if not isinstance(name, str):
        raise TypeError(f"name={name!r}: give the name that the spans are to have, as text")
    for key, value in (("forward", forward), ("backward", backward)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{key}={value!r}: give seconds, 0 or more, or leave it out")
        if not 0 <= value < float("inf"):
            raise ValueError(f"{key}={value!r}: give seconds, 0 or more, or leave it out")
    return Mark(module, name, forward, backward)


class Mark:
    """What `mark` has put round a module."""

    def __init__(
        self, module: nn.Module, name: str, forward: float | None, backward: float | None
    ) -> None:
        self._module = module
        self._forward = f"forward {name}"
        self._backward = f"backward {name}"
        self._tags = [{} if s is None else {"seconds": s} for s in (forward, backward)]
        self._calls: list[_Call] = []  # forwards that have begun, the innermost last
        self._open: list[_Call] = []  # backwards that have begun
        self._hooks = [
            module.register_forward_pre_hook(self._enter, with_kwargs=True),
            # Before the module's other hooks: what they do is not part of it.
            module.register_forward_hook(self._leave, prepend=True, always_call=True),
            # A parameter's gradient is there, and not handed on yet.
            *(p.register_hook(self._gradient) for p in self._parameters()),
        ]

    def remove(self) -> None:
        """Take the spans away; a backward of what was computed before has none either."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _parameters(self) -> list[nn.Parameter]:
        return [p for p in self._module.parameters() if p.requires_grad]

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        call = _Call(self, span(self._forward, **self._tags[0]))
        self._calls.append(call)
        call.take_inputs(list(tensors_in((args, kwargs))))
        call.forward.__enter__()

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._calls:  # marked while it ran
            return
        call = self._calls.pop()
        call.forward.__exit__(None, None, None)
        for tensor in tensors_in(output):
            node = tensor.grad_fn
            if node is not None and node not in call.before:  # else it was passed through
                _when(node.register_prehook, node, "begin", call.begin)

    def _gradient(self, _: Tensor) -> None:
        log = current()
        if self._open and log is not None and log.pacer is not None:
            log.pacer.rest(self._backward)
        for call in list(self._open):
            call.gradient()


class _Call:
    """One call of a marked module, and its backward."""

    def __init__(self, mark: Mark, forward: span) -> None:
        self.forward = forward
        self._mark = mark
        self.before: list[Any] = []  # nodes of the graph that made the inputs
        self._left = 0  # gradients that are still to come
        self._backward: span | None = None  # while it runs

    def take_inputs(self, tensors: list[Tensor]) -> None:
        import torch

        # A hook on a leaf would outlive this call.
        made = {id(t): t for t in tensors if t.grad_fn is not None and torch.is_grad_enabled()}
        self.before = [t.grad_fn for t in made.values()]
        for tensor in made.values():
            _when(tensor.register_hook, tensor.grad_fn, tensor.output_nr, self._one_less)

    def begin(self) -> None:
        """The gradient of an output is there."""
        mark = self._mark
        if self._backward is not None or not mark._hooks:
            return
        import torch

        self._backward = span(mark._backward, **mark._tags[1])
        self._left = len(self.before) or len(mark._parameters())
        mark._open.append(self)
        # Some of them may never come: those of parameters that were not used, for one.
        torch.autograd.Variable._execution_engine.queue_callback(self.end)
        self._backward.__enter__()

    def gradient(self) -> None:
        """A parameter of the module has its gradient."""
        if not self.before:
            self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.end()

    def end(self) -> None:
        """The backward of this call is over."""
        if self._backward is None:
            return
        self._backward.__exit__(None, None, None)
        self._backward = None
        self._mark._open.remove(self)


def _when(register: Callable[[Any], Any], node: Any, what: Any, act: Callable[[], None]) -> None:
    """Let `act` be called by a hook of `node`; of several, the last that came first.

    So of modules that lie in each other, and share a tensor, the outer one begins first, and the
    inner one ends first.
    """
    acts: list[Callable[[], None]] = node.metadata.setdefault(("labkit.mark", what), [])
    acts.append(act)
    if len(acts) == 1:
        register(lambda _: [act() for act in reversed(acts)] and None)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in arguments or results, however they are nested."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
