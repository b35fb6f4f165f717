"""A training run's weights and gradients, step by step, small enough to send home.

Every noted step leaves a checksum of each parameter and of its gradient: equal bits, equal
checksum. Of the steps that are asked for, the numbers are kept too. So a long run is compared by
its checksums first, and run again with ``keep`` at the step where they part. Cost: one pass over
the bytes a step (about 1 ms a MB), and a copy of them for each step kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["BEFORE", "GRADIENT", "WEIGHT", "History", "Noted", "Pair", "Record", "differing"]

BEFORE = -1  # the step that stands for the weights before the first one
GRADIENT, WEIGHT = "gradient", "weight"

Key = tuple[int, str, str]  # step, GRADIENT or WEIGHT, parameter


@dataclass(frozen=True)
class Noted:
    """One tensor at one step; `value` is kept only where it was asked for.

    A parameter without a gradient has the checksum "" and no shape.
    """

    checksum: str
    shape: tuple[int, ...] | None
    dtype: str
    finite: bool
    value: Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Record:
    """What one rank noted: `noted` by (step, "gradient" or "weight", parameter), in that order."""

    rank: int
    ranks: int
    noted: Mapping[Key, Noted]

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(step for step, _, _ in self.noted))

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for _, _, name in self.noted))


Pair = tuple[Record, Record]


class History:
    """Takes notes of a model while it trains.

    Make it when the model is ready to train (after a wrapper has sent the weights round), call
    `note` after each optimizer step, and return `record` from the function that ran.

    Parameters
    ----------
    model : whose parameters; a wrapper's ``module.`` is left out of their names
    keep : steps whose numbers are kept; `BEFORE` (−1) for the weights before the first one
    gradients : note gradients as well: they tell a wrong gradient from a wrong update
    limit_mb : how many megabytes `keep` may take

    Raises
    ------
    ValueError : the model has no parameters; `keep` would take more than `limit_mb`
    """

    def __init__(
        self,
        model: nn.Module,
        keep: Collection[int] = (),
        gradients: bool = True,
        limit_mb: float = 256.0,
    ) -> None:
        self.parameters = {name.removeprefix("module."): p for name, p in model.named_parameters()}
        if not self.parameters:
            raise ValueError(f"{type(model).__name__} has no parameters to take notes of")
        self.keep, self.gradients = frozenset(keep), gradients
        tensors = [_local(p) for p in self.parameters.values()]
        size = sum(t.numel() * t.element_size() for t in tensors) / 1e6 * (2 if gradients else 1)
        if len(self.keep) * size > limit_mb:
            raise ValueError(
                f"keep: {len(self.keep)} steps of {size:.1f} MB are more than "
                f"limit_mb={limit_mb:g}; keep fewer (checksums tell which), or raise the limit"
            )
        self._noted: dict[Key, Noted] = {}
        self._last = BEFORE
        self._note(BEFORE, gradients=False)

    def note(self, step: int) -> None:
        """Take notes of the weights after `step`, and of the gradients that led to them.

        Raises
        ------
        ValueError : `step` does not come after the last one noted
        """
        if not step > self._last:
            raise ValueError(f"step={step} after step {self._last}: steps go up from 0")
        self._last = step
        self._note(step, self.gradients)

    def _note(self, step: int, gradients: bool) -> None:
        keep = step in self.keep
        if gradients:
            for name, p in self.parameters.items():
                self._noted[step, GRADIENT, name] = _noted(p.grad, keep)
        for name, p in self.parameters.items():
            self._noted[step, WEIGHT, name] = _noted(p, keep)

    def record(self) -> Record:
        """What was noted so far: plain data, which may leave the rank."""
        inside = dist.is_available() and dist.is_initialized()
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if inside else (0, 1)
        return Record(rank, ranks, dict(self._noted))


def _local(tensor: Tensor) -> Tensor:
    """The piece of it that this rank holds (of a DTensor), or all of it."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor


def _noted(tensor: Tensor | None, keep: bool) -> Noted:
    if tensor is None:
        return Noted("", None, "", True)
    local = _local(tensor).cpu().contiguous()
    raw = local.reshape(-1).view(torch.uint8).numpy()
    checksum = hashlib.blake2b(raw.tobytes(), digest_size=12).hexdigest()
    dtype = str(local.dtype).removeprefix("torch.")
    finite = bool(torch.isfinite(local).all())
    return Noted(checksum, tuple(local.shape), dtype, finite, local.clone() if keep else None)


def differing(a: Record, b: Record, step: int, what: str) -> Iterator[str]:
    """The parameters whose bits differ at a step, in the model's order."""
    for name in a.parameters:
        ours, theirs = a.noted.get((step, what, name)), b.noted.get((step, what, name))
        if ours is not None and theirs is not None and ours.checksum != theirs.checksum:
            yield name
