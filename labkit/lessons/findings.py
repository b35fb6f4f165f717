"""What the records of two runs show, in words, and nothing that they do not show.

Gradients that differ on equal weights came from other data or another sum. Weights that differ
after equal weights and equal gradients came from another update.

Whether reordering is enough for a difference. The computed sum of n numbers, in whatever order,
lies within γ·Σ|xᵢ| of the true one, γ = (n−1)u / (1 − (n−1)u), u = half the dtype's epsilon
(Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2). So two orders differ by
at most 2γ·Σ|xᵢ|. The xᵢ are not on record: in place of Σ|xᵢ| stands the largest gradient of the
step. Where the terms of a gradient nearly cancel, Σ|xᵢ| is larger, and the bound too strict;
therefore it is always told with the verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from labkit.lessons.history import BEFORE, GRADIENT, WEIGHT, Pair, Record

__all__ = ["explain", "not_finite_told", "replicas_told", "scale_of", "where_told"]


def explain(pairs: Sequence[Pair], step: int, what: str, terms: int) -> tuple[bool | None, str]:
    """Whether another order of adding is enough for the first difference, and why."""
    if step == BEFORE:
        return False, "The runs began with other weights."
    before = all((step - 1, WEIGHT, name) in r.noted for pair in pairs for r in pair
                 for name in r.parameters[:1])  # fmt: skip
    equal = "The weights before it are equal bit for bit. " if before else ""
    if what == WEIGHT:
        noted = all((step, GRADIENT, name) in r.noted for pair in pairs for r in pair
                    for name in r.parameters[:1])  # fmt: skip
        if not noted:
            return None, (
                f"{equal}Gradients were not noted, so a wrong gradient and a wrong update look "
                f"alike: use History(model, gradients=True)."
            )
        if not before:
            return None, "Its gradients are equal, but the step before was not noted."
        return False, (
            f"{equal}So are its gradients: the update itself differs, by the optimizer's state or "
            f"its settings."
        )
    values = [
        (a.noted[step, what, name], b.noted[step, what, name])
        for a, b in pairs
        for name in a.parameters
    ]
    if any((x.shape is None) != (y.shape is None) for x, y in values):
        return False, f"{equal}One of the runs has no gradient there."
    if any(not noted.finite for both in values for noted in both):
        return False, f"{equal}Not all gradients of this step are finite."
    kept = [
        (x.value.double(), y.value.double())
        for x, y in values
        if x.value is not None and y.value is not None
    ]
    if len(kept) < sum(x.shape is not None for x, _ in values):
        return None, f"{equal}How far was not kept: run again with History(model, keep=[{step}])."
    unit = max(torch.finfo(getattr(torch, x.dtype)).eps / 2 for x, _ in values if x.dtype)
    enough, told = _by_size(pairs[0], kept, terms, unit)
    return enough, equal + told


def _by_size(
    pair: Pair, gradients: Sequence[tuple[Tensor, Tensor]], terms: int, unit: float
) -> tuple[bool, str]:
    """Set the differences beside what reordering can make, and look for a common factor."""
    n = (terms - 1) * unit
    bound = 2 * n / (1 - n) if n < 0.5 else 2.0
    largest = max(_largest(t) for both in gradients for t in both)
    far = max(_largest(x - y) for x, y in gradients) / largest
    sizes = (
        f"{far:.1e} of the largest gradient, and {terms:,} numbers added in two orders may differ "
        f"by {bound:.1e}."
    )
    if far <= bound:
        return True, f"Reordering is enough to explain it: {sizes}"
    squares = float(sum((x * x).sum() for x, _ in gradients))
    factor = float(sum((x * y).sum() for x, y in gradients)) / squares if squares else 0.0
    rest = max(_largest(y - factor * x) for x, y in gradients) / largest
    if rest > bound or factor <= 0:
        return False, f"More than reordering explains: {sizes}"
    told = f"The gradients of run b are {factor:.2f} times those of run a"
    a, b = pair
    if b.ranks > 1 and abs(factor / b.ranks - 1) < 1e-3:
        return False, f"{told}, as many as it has ranks: so much is a sum beside a mean."
    if a.ranks > 1 and abs(factor * a.ranks - 1) < 1e-3:
        return False, f"{told}, which has {a.ranks} ranks: so much is a mean beside a sum."
    return False, f"{told}; reordering does not do that."


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def scale_of(record: Record, step: int, what: str) -> float:
    """The largest finite number of a kind at a step, of what was kept."""
    kept = (record.noted[step, what, name].value for name in record.parameters)
    finite = (torch.nan_to_num(t.double(), nan=0.0, posinf=0.0, neginf=0.0) for t in kept
              if t is not None)  # fmt: skip
    return max((_largest(t) for t in finite), default=0.0)


def where_told(pairs: Sequence[Pair], names: Sequence[Sequence[str]]) -> Iterator[str]:
    """How many parameters differ at the first difference, and on which ranks."""
    found = {name for differ in names for name in differ}
    of = len(pairs[0][0].parameters)
    if len(found) == 1 and of > 1:
        yield f"One parameter only, of {of}: {next(iter(found))}."
    else:
        yield f"{len(found)} of {of} parameters differ there."
    ranks = [str(pair[1].rank if pair[1].ranks > 1 else pair[0].rank)
             for pair, differ in zip(pairs, names, strict=True) if differ]  # fmt: skip
    if len(ranks) < len(pairs):
        yield f"On rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} only, of {len(pairs)}."


def replicas_told(run: Sequence[Record], name: str) -> Iterator[str]:
    """Where the ranks of one run, which are to be equal, are not."""
    for key, noted in run[0].noted.items() if len(run) > 1 else ():
        step, what, parameter = key
        checksums = [r.noted[key].checksum if key in r.noted else None for r in run]
        common, count = Counter(checksums).most_common(1)[0]
        if count == len(run) or any(
            r.noted[key].shape != noted.shape for r in run if key in r.noted
        ):
            continue
        odd = [r.rank for r, its in zip(run, checksums, strict=True) if its != common]
        if 2 * count <= len(run):  # nobody can say who is right
            odd = [r.rank for r in run]
        who = f"rank{'s' if len(odd) > 1 else ''} {', '.join(map(str, odd))}"
        text = f"Replicas of run {name} differ among themselves {_since(step)}: "
        text += f"{what} of {parameter}, {who} first."
        if what == WEIGHT and (step, GRADIENT, parameter) in run[0].noted:
            text += " Their gradients of that step are equal: the update differs."
        yield text
        return


def _since(step: int) -> str:
    return "before the first step" if step == BEFORE else f"from step {step} on"


def not_finite_told(run: Sequence[Record], name: str) -> Iterator[str]:
    """Where a run first holds NaN or infinity."""
    for key in run[0].noted:
        for record in run:
            if key in record.noted and not record.noted[key].finite:
                step, what, parameter = key
                yield (
                    f"Run {name} holds numbers that are not finite {_since(step)}: "
                    f"{what} of {parameter}, rank {record.rank}."
                )
                return
