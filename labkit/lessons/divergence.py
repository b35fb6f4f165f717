"""Two runs compared by step, parameter and rank: where they part, how far, and what that shows.

Up to the first difference two runs are one, so what differs first tells most; `findings` says what.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.lessons.findings import (
    explain,
    not_finite_told,
    replicas_told,
    scale_of,
    where_told,
)
from labkit.lessons.history import BEFORE, GRADIENT, WEIGHT, Pair, Record, differing

__all__ = ["Difference", "Divergence", "compare"]

_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


@dataclass(frozen=True)
class Difference:
    """One number that differs.

    Parameters
    ----------
    step : BEFORE (−1): before the first one
    what : "gradient" or "weight" (after the step's update)
    index : of the element; None, with all that follows, where the numbers were not kept
    a, b : the values in the two runs; `bits_a` and `bits_b` in hexadecimal
    of_largest : |a − b| in units of the largest number of that kind at that step
    ulps : how many numbers of the dtype lie between the two, plus one
    """

    step: int
    rank: int
    what: str
    parameter: str
    index: tuple[int, ...] | None = None
    a: float | None = None
    b: float | None = None
    bits_a: str = ""
    bits_b: str = ""
    of_largest: float | None = None
    ulps: int | None = None

    def __str__(self) -> str:
        when = "before the first step" if self.step == BEFORE else f"step {self.step}"
        text = f"{when}, {self.what} of {self.parameter}, rank {self.rank}"
        if self.index is None:
            return text
        at = ", ".join(map(str, self.index))
        far = "" if self.ulps is None else f", {self.ulps} ulps"
        share = "" if self.of_largest is None else f"; {self.of_largest:.2g} of the largest{far}"
        values = f"{self.a:.9g} ({self.bits_a}) and {self.b:.9g} ({self.bits_b})"
        return f"{text}, element [{at}]: {values}{share}"


@dataclass(frozen=True)
class Divergence:
    """What two runs have not in common.

    Parameters
    ----------
    first : where their bits part; None: equal in all that was noted
    largest : the largest difference in the steps that both kept
    explained : whether another order of adding is enough for the first difference; None: the
        records do not tell
    findings : what the records show, a sentence each
    """

    first: Difference | None
    largest: Difference | None
    explained: bool | None
    findings: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether all that both runs noted is equal bit for bit."""
        return self.first is None

    def __str__(self) -> str:
        lines = [
            "Equal, bit for bit." if self.first is None else f"First difference: {self.first}."
        ]
        lines += self.findings
        if self.largest is not None:
            lines.append(f"Largest difference: {self.largest}.")
        return "\n".join(lines)


def compare(a: Any, b: Any, terms: int = 1024, replicas: bool = True) -> Divergence:
    """Where runs `a` and `b` part.

    Parameters
    ----------
    a, b : a `Record`, a sequence of them by rank, or a run that returned one a rank. Ranks are
        compared one by one; with another number of ranks, every rank with the other run's rank 0
    terms : how many numbers are added up in one element of a gradient (tokens of the global batch)
    replicas : whether the ranks of a run are to be equal among themselves

    Raises
    ------
    ValueError : the two have no step in common, other parameters, or parameters of another shape
        or dtype; `terms` is below 1
    TypeError : `a` or `b` holds no records
    """
    if terms < 1:
        raise ValueError(f"terms={terms}: give how many numbers are added up, 1 or more")
    ours, theirs = _records(a, "a"), _records(b, "b")
    if len(ours) != len(theirs):
        ours_of = ours if len(ours) > len(theirs) else ours[:1] * len(theirs)
        theirs_of = theirs if len(theirs) > len(ours) else theirs[:1] * len(ours)
        pairs = list(zip(ours_of, theirs_of, strict=True))
    else:
        pairs = list(zip(ours, theirs, strict=True))
    for pair in pairs:
        _check(pair)
    findings: list[str] = []
    if replicas:
        findings += [*replicas_told(ours, "a"), *replicas_told(theirs, "b")]
    findings += [*not_finite_told(ours, "a"), *not_finite_told(theirs, "b")]
    parted = _parted(pairs)
    if parted is None:
        return Divergence(None, None, None, tuple(findings))
    step, what, names = parted
    explained, told = explain(pairs, step, what, terms)
    found = [told, *where_told(pairs, names), *findings]
    at = next(i for i, differ in enumerate(names) if differ)
    first = _first(pairs[at], step, what, names[at][0])
    return Divergence(first, _largest(pairs), explained, tuple(found))


def _records(run: Any, name: str) -> list[Record]:
    found = getattr(run, "results", run)
    found = [found] if isinstance(found, Record) else found
    several = isinstance(found, Sequence) and len(found) > 0
    if not several or not all(isinstance(record, Record) for record in found):
        raise TypeError(
            f"{name}={run!r}: give records, or a run whose function returned history.record()"
        )
    return list(found)


def _check(pair: Pair) -> None:
    a, b = pair
    for ours, theirs, other in ((a, b, "b"), (b, a, "a")):
        if missing := [name for name in ours.parameters if name not in theirs.parameters]:
            raise ValueError(f"run {other} has no parameter {missing[0]!r}: compare one model")
    for name in a.parameters:
        x, y = a.noted[BEFORE, WEIGHT, name], b.noted[BEFORE, WEIGHT, name]
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            raise ValueError(
                f"{name}: {x.dtype} of shape {x.shape} in run a, {y.dtype} of shape {y.shape} in "
                f"run b, on rank {b.rank}: only equal shapes and dtypes can be compared"
            )
    if not _common(pair)[1:] and (len(a.steps) > 1 or len(b.steps) > 1):
        raise ValueError("no step was noted in both runs: note the same steps in each")


def _common(pair: Pair) -> list[int]:
    return sorted(set(pair[0].steps) & set(pair[1].steps))


def _parted(pairs: Sequence[Pair]) -> tuple[int, str, list[list[str]]] | None:
    """The first step and kind in which a pair differs, and which parameters of each pair do."""
    for step in _common(pairs[0]):
        for what in (GRADIENT, WEIGHT):
            names = [list(differing(*pair, step, what)) for pair in pairs]
            if any(names):
                return step, what, names
    return None


def _first(pair: Pair, step: int, what: str, name: str) -> Difference:
    x, y = (record.noted[step, what, name].value for record in pair)
    rank = pair[1].rank if pair[1].ranks > 1 else pair[0].rank
    if x is None or y is None:
        return Difference(step, rank, what, name)
    changed = torch.nonzero((_bits(x) != _bits(y)).flatten()).flatten()
    return _difference(pair, step, what, name, int(changed[0]))


def _largest(pairs: Sequence[Pair]) -> Difference | None:
    """The largest difference, in units of the largest number, of all that both runs kept."""
    found: Difference | None = None
    for pair in pairs:
        for (step, what, name), noted in pair[0].noted.items():
            other = pair[1].noted.get((step, what, name))
            if noted.value is None or other is None or other.value is None:
                continue
            far = torch.nan_to_num((noted.value.double() - other.value.double()).abs(), nan=0.0)
            if noted.checksum == other.checksum or not far.numel():
                continue
            it = _difference(pair, step, what, name, int(far.argmax()))
            if found is None or (it.of_largest or 0.0) > (found.of_largest or 0.0):
                found = it
    return found


def _difference(pair: Pair, step: int, what: str, name: str, at: int) -> Difference:
    x, y = (record.noted[step, what, name].value for record in pair)
    assert x is not None
    assert y is not None
    rank = pair[1].rank if pair[1].ranks > 1 else pair[0].rank
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), x.shape))
    a, b = x.flatten()[at], y.flatten()[at]
    width = 2 * a.element_size()
    bits = [int(_bits(v)) for v in (a, b)]
    largest = max(scale_of(record, step, what) for record in pair)
    texts = [f"0x{n % (1 << 4 * width):0{width}x}" for n in bits]
    places = [_place(n, a.element_size()) for n in bits]
    far = abs(float(a) - float(b))
    known = math.isfinite(far)
    return Difference(
        step, rank, what, name, index, float(a), float(b), texts[0], texts[1],
        far / largest if known and largest else None,
        abs(places[0] - places[1]) if known else None,
    )  # fmt: skip


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(_INTEGERS[tensor.element_size()])


def _place(bits: int, size: int) -> int:
    """A float's place among all of its dtype, from its bits as a signed integer."""
    return bits if bits >= 0 else -(bits + (1 << (8 * size - 1)))
