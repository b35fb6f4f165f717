"""Data parallelism: every rank holds the whole model, works on its own shard of the batch, and all
ranks average their gradients, so that equal optimizers take equal steps from equal weights.

It buys time, not memory for the model: each rank keeps all weights, gradients and optimizer state;
only activations shrink with its shard. It costs an all-reduce of the gradient in every step: with
a ring 2(N-1)/N times its bytes, sent by each of N ranks, and a wait for the slowest. The three
ways below move the same bytes. What differs is how often a message's latency is paid, and how much
of the moving hides behind the backward:

average_each    one all-reduce per parameter, after the backward
average_flat    one all-reduce for all of them, after the backward
DataParallel    a few buckets, each sent as soon as its last gradient is ready
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.techniques.buckets import (
    MIB,
    Bucket,
    broadcast,
    check_same_model,
    fill_buckets,
    named_buckets,
)
from labkit.trace import span


def average_each(
    parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None = None
) -> None:
    """Average ``.grad`` over the ranks of `group`, one all-reduce per parameter."""
    ranks = dist.get_world_size(group)
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)  # who sends nothing leaves the others waiting for ever
        p.grad.mul_(1 / ranks)
        dist.all_reduce(p.grad, group=group)  # each rank waits here for all, once a parameter


def average_flat(
    parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None = None
) -> None:
    """Average ``.grad`` over the ranks of `group`, one all-reduce for all (of one dtype)."""
    ranks = dist.get_world_size(group)
    for bucket in fill_buckets(parameters, [float("inf")]):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.reshape(-1) for g in grads]).mul_(1 / ranks)  # [all elements]
        dist.all_reduce(flat, group=group)  # each rank waits here for all, once
        for p, mean in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad = mean.view_as(p)


class DataParallel(nn.Module):
    """A module whose gradients are averaged over the ranks while the backward still runs.

    ::

        model = DataParallel(model)
        loss_fn(model(x), y).backward()   # x, y: this rank's shard
        model.finish()                    # on every rank, after every backward, before the update
        optimizer.step()

    Construction overwrites all parameters and buffers by rank 0's. Buffers are overwritten again
    before the first forward that follows a synchronised one, as in torch's DDP, also in ``eval()``.
    A parameter that no rank used keeps its ``.grad`` (None); one that some ranks used gets the
    average, the others counting as zero. A synchronised backward that raised is dropped by the
    next forward, with all that was in ``.grad``.

    Parameters
    ----------
    module : the same on all ranks but for its values
    bucket_mb : MiB at which a bucket is closed; the first closes at 1 MiB, to be under way early.
        The first step sends a single bucket: only its backward shows in which order gradients
        become ready, and the buckets are cut in that order (rank 0's).
    overlap : False: no hooks; ``finish()`` averages whatever is in ``.grad``
    buckets : lists of parameters or their names, instead of `bucket_mb`; sent in this order
    group : the ranks that share the work; None: all

    Raises
    ------
    ValueError : nothing to train, `bucket_mb` not positive, `buckets` that miss, repeat or mix
        parameters, sparse gradients, or ranks whose parameters differ in name, shape or dtype
    """

    _ready: list[nn.Parameter]
    _counted: tuple[float, Tensor, dist.Work] | None  # by weigh(): ours, all ranks', its all-reduce
    _share: float | None  # what this rank's gradient is multiplied by

    def __init__(
        self,
        module: nn.Module,
        bucket_mb: float = 25.0,
        overlap: bool = True,
        buckets: Sequence[Sequence[nn.Parameter | str]] | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        if not bucket_mb > 0:
            raise ValueError(f"bucket_mb={bucket_mb}: give a size above 0 MiB")
        self.module = module
        self.group = group
        self.ranks = dist.get_world_size(group)
        if self.ranks < 1:
            raise ValueError("group: this rank is not part of it")
        # A tied weight has two names but is one parameter: it is met, and sent, once.
        self.names = {p: name for name, p in module.named_parameters() if p.requires_grad}
        if not self.names:
            raise ValueError("module has no parameter that requires a gradient: nothing to average")
        if any(getattr(m, "sparse", False) for m in module.modules()):
            raise ValueError("module has sparse gradients: build its embeddings with sparse=False")
        check_same_model(module, group)
        broadcast([*module.parameters(), *module.buffers()], group)

        backwards = list(self.names)[::-1]
        self._caps = [min(1.0, bucket_mb) * MIB, bucket_mb * MIB]
        self._order_known = True
        if buckets is not None:
            cut = named_buckets(buckets, self.names)
        elif overlap:
            cut = fill_buckets(self.names, [float("inf")])
            self._order_known = False
        else:
            cut = fill_buckets(backwards, self._caps)
        self._cut(cut)
        self._in_no_sync = False
        self._synchronise = True  # decided by the last forward
        self._buffers_differ = True
        if overlap:
            ready = WeakMethod(self._gradient_ready)  # a discarded wrapper leaves the module alone
            for p in self.names:
                p.register_post_accumulate_grad_hook(lambda p: (act := ready()) and act(p))

    # ---- forward: which steps are synchronised

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._buffers_differ and (held := list(self.module.buffers())):
            broadcast(held, self.group)
        if torch.is_grad_enabled():
            self._drop_unfinished()
            self._synchronise = not self._in_no_sync
        self._buffers_differ = torch.is_grad_enabled() and self._synchronise
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forwards in here only add to this rank's ``.grad``, wherever their backward runs."""
        before, self._in_no_sync = self._in_no_sync, True
        try:
            yield
        finally:
            self._in_no_sync = before

    def weigh(self, count: float) -> None:
        """Say what this rank's gradient is the mean of, before the backward that is synchronised.

        Ranks then count as much as they hold: the result is the gradient of the mean over all.
        Every rank calls it or none. With ``weigh(0)`` a rank may leave out the backward (and the
        forward, where the module has no buffers), but not ``finish()``.

        Parameters
        ----------
        count : samples or tokens on this rank, over all backwards since the last ``finish()``
        """
        if not 0 <= count < float("inf"):
            raise ValueError(f"count={count}: give this rank's number of samples, 0 or more")
        self._drop_unfinished()
        total = torch.tensor([count], dtype=torch.float64, device=next(iter(self.names)).device)
        # Nobody waits here: the total is needed when the first gradient is ready.
        self._counted = (count, total, dist.all_reduce(total, group=self.group, async_op=True))

    # ---- backward: send each bucket as soon as it is full

    def _gradient_ready(self, p: nn.Parameter) -> None:
        if not self._synchronise:
            return
        bucket = self._home[p]
        if p not in bucket.missing:
            raise RuntimeError(
                f"{self.names[p]} got a second gradient in one step: call finish() after each "
                "backward, or run all forwards but the last under no_sync()"
            )
        if not self._ready:
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        self._ready.append(p)
        bucket.missing.discard(p)
        if p.grad is not None:
            bucket.place(p, p.grad, self._weight())
        # Gradients may become ready in another order on another rank. Collectives match by their
        # order alone, so buckets leave in theirs: a full one waits for those before it.
        while self._sent < len(self._buckets) and not self._buckets[self._sent].missing:
            self._send()

    def _weight(self) -> float:
        if self._share is None:
            self._share = 1 / self.ranks
            if self._counted is not None:
                count, total, work = self._counted
                work.wait()  # until every rank has called weigh()
                self._share = count / total.item() if total.item() else 0.0
        return self._share

    def _send(self) -> None:
        bucket = self._buckets[self._sent]
        with span("send bucket", bucket=self._sent):
            for p in bucket.missing:  # none but in finish()
                if p.grad is None:
                    bucket.views[p].fill_(-0.0)  # the sum is -0.0 only if every rank sends -0.0
                else:
                    bucket.place(p, p.grad, self._weight())  # from no_sync, or put there by hand
            # Nobody waits: the ranks exchange this bucket while the backward goes on.
            bucket.work = dist.all_reduce(bucket.flat, group=self.group, async_op=True)
        self._sent += 1

    def _end_of_backward(self) -> None:
        self._backward_ended = True

    # ---- after the backward

    @torch.no_grad()
    def finish(self) -> None:
        """Send what is left and wait for all ranks; then ``.grad`` holds the average.

        Does nothing when the last forward ran under ``no_sync()``.
        """
        if not self._synchronise:
            return
        while self._sent < len(self._buckets):
            self._send()
        for bucket in self._buckets:
            if bucket.work is not None:
                bucket.work.wait()  # until every rank has sent this bucket
            for p in bucket.missing:
                if p.grad is None and not bucket.nobody_used(p):
                    p.grad = bucket.views[p]
        if self._order_known:
            self._new_step()
        else:
            self._cut(fill_buckets(self._agree_on_order(), self._caps))
            self._order_known = True

    def _agree_on_order(self) -> list[nn.Parameter]:
        every = list(self.names)
        seen = set(self._ready)
        unseen = [p for p in every[::-1] if p not in seen]
        place = {p: i for i, p in enumerate(every)}
        order = torch.tensor([place[p] for p in self._ready + unseen], device=every[0].device)
        dist.broadcast(order, group=self.group, group_src=0)  # all wait for rank 0's order
        return [every[i] for i in order.tolist()]

    def _cut(self, buckets: Sequence[Sequence[nn.Parameter]]) -> None:
        self._buckets = [Bucket(parameters) for parameters in buckets]
        self._home = {p: bucket for bucket in self._buckets for p in bucket.views}
        self._new_step()

    def _new_step(self) -> None:
        for bucket in self._buckets:
            bucket.missing = set(bucket.views)
            bucket.work = None
        self._sent = 0  # buckets on their way
        self._ready = []  # in the order their gradients came
        self._backward_ended = False
        self._counted = None
        self._share = None

    def _drop_unfinished(self) -> None:
        if not self._ready:
            return
        ended = self._backward_ended
        self.finish()  # the other ranks count on a collective for every bucket
        for p in self.names:
            if p.grad is not None:
                p.grad.zero_()
        if ended:
            raise RuntimeError("finish() has to follow each backward, and weigh() to precede it")
