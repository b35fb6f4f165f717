"""Counts the floating-point operations that a rank runs, as it runs them.

One bare dispatch mode sees every operation of torch below autograd, forward and backward, and adds
torch's own formulas (`torch.utils.flop_counter.flop_registry`) to the log's running count. Only
matrix products, convolutions and attention have a formula. Everything else counts 0, and so do the
fused LSTM and GRU of the CPU, what `torch.compile` fuses, and what is inside `torch.cond`. torch's
`FlopCounterMode` is not used: it puts autograd nodes of its own around modules, and
`torch.autograd.grad`, hence torch's pipelining, breaks under it.

Attention counts in full whether causal or not, as in torch: a kernel that skips the masked half
does about half the work that is counted. The fused backward counts 5 products (it computes the
scores anew) against 2 forward; unfused, as with dropout on a CPU, it counts 4.

A wrapper such as DTensor is asked to unwrap itself first, so a rank counts what it computes and not
the whole model. Fake and meta tensors compute nothing and count nothing.

Cost: a few microseconds an operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from labkit.trace.log import Log

__all__ = ["CountFlops"]

Formula = Callable[[tuple[Any, ...], dict[str, Any], Any], int]

_aten = torch.ops.aten


def _product(factor: int) -> Formula:
    """Of a matrix product whose first factor is positional argument number `factor`."""
    return lambda args, kwargs, out: int(2 * out.numel() * args[factor].shape[-1])


def _attention(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    q, k, v = (tensor.shape for tensor in args[:3])
    return int(2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3]))


def _attention_backward(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    q, k, v = (tensor.shape for tensor in args[1:4])
    return int(2 * q[0] * q[1] * q[2] * k[2] * (3 * q[3] + 2 * v[3]))


# torch has no formula for the attention kernel of the CPU and would count 0. Its formulas for
# products give the same numbers as ours, but walk through nested arguments first, which takes 20 µs
# a call: more than a small product itself.
_OURS: dict[Any, Formula] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _aten.mm: _product(0),
    _aten.bmm: _product(0),
    _aten.addmm: _product(1),
    _aten.baddbmm: _product(1),
}


class CountFlops(TorchDispatchMode):
    """Within it, ``log.flops`` grows by the operations that this thread runs (context manager).

    Results keep their bits. Under `torch.inference_mode`, where whole layers arrive, they are taken
    apart into their products first.

    Parameters
    ----------
    log : the log whose count grows; spans and events stamp it
    """

    # Without it an operator of higher order (`torch.cond`, flex attention) fails under any mode.
    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` compile, as it would unrecorded, instead of falling back to eager."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True, the default, wraps __torch_dispatch__ so that the first operation imports torch's
        # compiler: 1.7 s a process, and DTensor with it.
        return False

    def __init__(self, log: Log) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log = log
        self._formulas: dict[Any, Formula | None] = {}
        self._composite: dict[Any, bool] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if types and any(_is_wrapper(kind) for kind in types):
            return NotImplemented  # the wrapper unwraps; what it runs comes by again
        try:
            formula = self._formulas[func]
        except KeyError:
            formula = self._formulas[func] = _formula(func)
            self._composite[func] = formula is None and _is_composite(func)
        if formula is None:
            if self._composite[func]:
                with self:
                    parts = func.decompose(*args, **kwargs)
                if parts is not NotImplemented:
                    return parts
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        first = out[0] if isinstance(out, tuple | list) else out
        if not (isinstance(first, FakeTensor) or (first is not None and first.is_meta)):
            self._log.flops += formula(args, kwargs, out)
        return out


def _formula(func: Any) -> Formula | None:
    packet = getattr(func, "_overloadpacket", func)
    if packet in _OURS:
        return _OURS[packet]
    counted = flop_registry.get(packet)
    if counted is None:
        return None
    return lambda args, kwargs, out: int(counted(*args, **kwargs, out_val=out))


def _is_wrapper(kind: type) -> bool:
    if kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl:  # type: ignore[attr-defined]
        return False  # torch.Tensor itself, and parameters
    return not issubclass(kind, FakeTensor)


def _is_composite(func: Any) -> bool:
    # "prim" holds questions such as a tensor's device, which the dispatcher does not know.
    known = isinstance(func, torch._ops.OpOverload) and func.namespace != "prim"
    return known and func._can_decompose()
