"""Counts the floating-point operations that a rank runs, as it runs them.

Operations that have a formula (matrix products, convolutions, attention) get a kernel of ours in
the place of torch's own: it calls torch's and adds to the log's running count what the formula
says (`torch.utils.flop_counter.flop_registry`). It stands where the work is done, below autograd,
DTensor and every mode, so that a rank counts what it computes and not the whole model, and what
computes nothing (fake and meta tensors) counts nothing. Everything else counts 0, and so do the
fused LSTM and GRU of the CPU and what `torch.compile` fuses.

A `TorchDispatchMode` is not used, nor torch's `FlopCounterMode`: a mode takes every operation
through Python, 5 to 40 µs each. That was a fifth of a small model's step, and stood in the recorded
CPU time as if the model had needed it.

Attention counts in full whether causal or not, as in torch: a kernel that skips the masked half
does about half the work that is counted. The fused backward counts 5 products (it computes the
scores anew) against 2 forward; unfused, as with dropout on a CPU, it counts 4.

Cost: a few microseconds an operation that has a formula, nothing for any other; a few milliseconds
to put the kernels in their place.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.library import Library, get_kernel
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


class _Thread(threading.local):
    """What one thread is doing."""

    inside = False  # an operation that is counted: what it calls is part of it


class CountFlops:
    """Within it, ``log.flops`` grows by the operations of the thread that made it, as they run.

    A context manager. A backward counts on whatever thread it runs. Results keep their bits.

    Parameters
    ----------
    log : the log whose count grows; spans and events stamp it
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._thread = threading.get_ident()
        self._here = _Thread()
        self._kernels: Library | None = None

    def __enter__(self) -> CountFlops:
        self._kernels = Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            for op, key, formula in _counted():
                kernel = self._kernel(get_kernel(op, key).call_boxed, formula)
                self._kernels.impl(op, kernel, key, with_keyset=True, allow_override=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._kernels is not None:
            self._kernels._destroy()
            self._kernels = None

    def _kernel(self, real: Callable[..., Any], formula: Formula) -> Callable[..., Any]:
        log, here = self._log, self._here

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            if here.inside or not self._ours():
                return real(keys, *args, **kwargs)
            here.inside = True
            try:
                out = real(keys, *args, **kwargs)
            finally:
                here.inside = False
            log.flops += formula(args, kwargs, out)
            return out

        return kernel

    def _ours(self) -> bool:
        # On a GPU a backward has a thread of its own.
        return threading.get_ident() == self._thread or torch._C._current_graph_task_id() >= 0


def _counted() -> Iterator[tuple[Any, str, Formula]]:
    """What has a kernel here and a formula, with the key of the kernel's device."""
    for packet in {*flop_registry, *_OURS}:
        if not isinstance(packet, torch._ops.OpOverloadPacket):
            continue  # of higher order: what it calls comes by itself
        formula = _OURS.get(packet) or _torchs(flop_registry[packet])
        for op in (getattr(packet, name) for name in packet.overloads()):
            # What autograd takes apart is counted by its parts; a kernel would hide them from it.
            if torch._C._dispatch_has_kernel_for_dispatch_key(
                op.name(), "CompositeImplicitAutograd"
            ):
                continue
            for key in ("CPU", "CUDA"):
                if torch._C._dispatch_has_computed_kernel_for_dispatch_key(op.name(), key):
                    yield op, key, formula


def _torchs(counted: Callable[..., Any]) -> Formula:
    return lambda args, kwargs, out: int(counted(*args, **kwargs, out_val=out))
