"""Ring all-reduce: every rank ends with the sum, though each talks to its two neighbours only.

The tensor is cut into N chunks. In N-1 steps each chunk travels once round the ring and collects
every rank's addend (reduce-scatter: each rank then holds one finished chunk); in N-1 more steps
the finished chunks travel round (all-gather). A rank sends 2(N-1) chunks of S/N bytes: 2(N-1)/N
times S, which hardly grows with N. Passing whole tensors round would send (N-1) times S.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def ring_all_reduce(flat: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Replace `flat` by its sum over the ranks of `group`, in place.

    All ranks get the same bits: each chunk is added up once, in the ring's order, then copied.

    Parameters
    ----------
    flat : one dimension, contiguous, of one size and dtype on all ranks; any number of elements

    Raises
    ------
    ValueError : `flat` is not one contiguous row of numbers
    """
    if flat.dim() != 1 or not flat.is_contiguous():
        raise ValueError(
            f"flat has shape {tuple(flat.shape)} and strides {flat.stride()}: "
            "give one contiguous dimension, as tensor.view(-1) does"
        )
    ranks, me = dist.get_world_size(group), dist.get_rank(group)
    chunks = flat.tensor_split(ranks)  # N views, at most one element apart in size
    arriving = torch.empty_like(chunks[0])

    # Reduce-scatter: in step s pass on what was added up last, chunk me-s.
    for s in range(ranks - 1):
        mine = chunks[(me - s - 1) % ranks]
        _pass_on(chunks[(me - s) % ranks], arriving[: mine.numel()], me, ranks, group)
        mine += arriving[: mine.numel()]

    # All-gather: now chunk me+1 is finished here; pass on what was finished last.
    for s in range(ranks - 1):
        _pass_on(chunks[(me + 1 - s) % ranks], chunks[(me - s) % ranks], me, ranks, group)


def _pass_on(
    out: Tensor, into: Tensor, me: int, ranks: int, group: dist.ProcessGroup | None
) -> None:
    # Both at once. If every rank sent first and received then, all would wait in their send.
    # Chunks are empty where there are fewer elements than ranks: both ends know, nobody sends.
    messages = []
    if out.numel():
        right = (me + 1) % ranks
        messages.append(dist.P2POp(dist.isend, out, group=group, group_peer=right))
    if into.numel():
        left = (me - 1) % ranks
        messages.append(dist.P2POp(dist.irecv, into, group=group, group_peer=left))
    for work in dist.batch_isend_irecv(messages) if messages else []:
        work.wait()  # for the left neighbour's message, and until the right one has taken ours
