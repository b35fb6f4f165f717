"""What ranks have to agree on: when to stop, and what a mean over all of them is.

Both are one tiny all-reduce. A decision taken by one rank alone leaves the others waiting in their
next collective; a mean of means counts a rank with one sample as much as one with a thousand.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def any_rank(
    flag: bool, group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu"
) -> bool:
    """Whether any rank of `group` says yes: the same answer on all, so that all leave together.

    A barrier is no substitute: it brings ranks to one point but carries no answer.
    """
    votes = torch.tensor([int(flag)], device=device)
    dist.all_reduce(votes, dist.ReduceOp.MAX, group=group)  # each waits for every rank's answer
    return bool(votes.item())


def global_mean(
    total: float,
    count: float,
    group: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
) -> float:
    """The mean over the items of all ranks, from each rank's sum and number of items.

    A rank without items passes 0 and 0. NaN if no rank has any.
    """
    both = torch.tensor([total, count], dtype=torch.float64, device=device)  # [2]
    dist.all_reduce(both, group=group)  # each waits for every rank's sum
    return float(both[0] / both[1])
