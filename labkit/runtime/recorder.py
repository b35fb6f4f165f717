"""Record what a rank says to the others, without changing what it says.

A recorded process uses `torch.distributed` as it is. Whenever torch has made a process group, a
`Recorded` group takes its place: a subclass that notes each call and passes it on to the group that
torch made. What it does not override works through the same backends, unrecorded. So torch's own
DDP, FSDP, DTensor and pipelines are seen too, from Python and from C++.

Cost: a few tens of microseconds a call. A collective is seen to complete through its future, up to
5 ms late (the callback needs Python's lock), never later than the end of its wait.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit.runtime import private, wire
from labkit.runtime.calls import KINDS
from labkit.runtime.cuda import CudaLog
from labkit.runtime.failures import Mismatch
from labkit.runtime.flops import CountFlops
from labkit.runtime.pace import Pace
from labkit.runtime.page import Page
from labkit.runtime.private import Work, c10d
from labkit.trace.events import Group
from labkit.trace.log import Log, RankRecord
from labkit.trace.span import write_to

# What the last argument is, where a call has the shape that backends take.
_LAST = (
    c10d.AllreduceOptions, c10d.AllreduceCoalescedOptions, c10d.BroadcastOptions,
    c10d.ReduceOptions, c10d.AllgatherOptions, c10d.ReduceScatterOptions, c10d.AllToAllOptions,
    c10d.BarrierOptions,
    int,  # the tag of a message
)  # fmt: skip

# Set in the environment of a launch: a message whose buffer changes before its wait is an error.
CHECK_BUFFERS = "LABKIT_CHECK_BUFFERS"

_HIDDEN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


_KIND = {kind: i for i, kind in enumerate(KINDS)}

# Calls that a backend takes as they are: the group's name for them, and the backend's.
_BACKEND_NAMES = {
    "allreduce": "allreduce",
    "allreduce_coalesced": "allreduce_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "allgather",
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}


class Recorder:
    """The record of this process: a `Log`, and what must be remembered between calls.

    Parameters
    ----------
    rank : global rank of this process
    page : where the launcher can read what was posted, and where the rank stands
    cuda : whether the rank works on a GPU, whose times the GPU must take

    Attributes
    ----------
    pace : what makes compute and operations last as on a cluster; None: they last as they do
    """

    def __init__(self, rank: int, page: Page | None = None, cuda: bool = False) -> None:
        self.log = CudaLog(rank) if cuda else Log(rank)
        self.page = page
        self.pace: Pace | None = None
        self.log.at_step = self._mark_wire
        self.check_buffers = bool(os.environ.get(CHECK_BUFFERS))
        self.followed: dict[int, None] = {}  # operations whose future was taken, not yet waited for
        self._numbers: defaultdict[tuple[int, ...], int] = defaultdict(int)
        self._places: dict[Any, bool] = {}

    def begin(self) -> None:
        """The group is up: what counts starts here."""
        self.log.begin()
        self._mark_wire()

    def finish(self) -> RankRecord:
        self._mark_wire()
        return self.log.finish()

    def _mark_wire(self) -> None:
        counted = wire.counters()
        if counted is not None:
            self.log.mark("wire", "sent", counted[0])
            self.log.mark("wire", "received", counted[1])

    def where(self) -> str | None:
        """The learner's line: the innermost frame outside torch and this package."""
        frame = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            hidden = self._places.get(code)
            if hidden is None:
                hidden = code.co_filename.startswith((*_HIDDEN, "<frozen"))
                self._places[code] = hidden
            if not hidden:
                return f"{code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def count(self, *what: int) -> int:
        """The number, from 0, of a collective in (group), a message in (group, from, to, tag).

        It is counted on when a group is destroyed and made once more.
        """
        number = self._numbers[what]
        self._numbers[what] = number + 1
        return number

    def take_back(self, number: int, *what: int) -> None:
        """The call of this number was refused: nothing was sent, and the next one is like it."""
        if self._numbers[what] == number + 1:
            self._numbers[what] = number

    def group(self, made: dist.ProcessGroup, ranks: list[int]) -> Recorded:
        """The recorded group that takes the place of `made`."""
        return Recorded(made, ranks, self)

    @contextlib.contextmanager
    def adopt(self) -> Iterator[None]:
        """Record the groups that are there already; afterwards they stand where they stood."""
        there = private.groups()
        for made, ranks in there:
            private.put_in_place(made, self.group(made, ranks))
        try:
            yield
        finally:
            for recorded, _ in private.groups():
                if isinstance(recorded, Recorded):
                    private.put_in_place(recorded, recorded.real)

    def around_backward(self, run: Callable[[], None], roots: list[torch.Tensor]) -> None:
        """Run a backward; what it then waits for inside C++ (torch's DDP) becomes a join."""
        log, page = self.log, self.page
        computed: list[Any] = []

        def ready() -> None:
            if self.pace is not None:
                self.pace.settle()
            computed.append(log.arrive())
            if page is not None and self.followed:
                page.join(tuple(self.followed))

        hooks = [
            t.register_hook(lambda _: private.after_backward(ready))
            for t in roots[:1]
            if t.requires_grad
        ]
        try:
            run()
        finally:
            for hook in hooks:
                hook.remove()
            if page is not None and computed:
                page.go_on()
        waited = tuple(self.followed)
        if computed and waited:
            if self.pace is not None:
                self.pace.passed(waited)
            log.event("join", "join", computed[0], log.stamp(), op=waited[-1], ops=waited)
            for op in waited:
                self.followed.pop(op, None)


class RecordedWork(Work):
    """The handle of a recorded operation: forwards everything, and notes waits."""

    def __init__(self, inner: Any, op: int, name: str, recorder: Recorder, fields: dict[str, Any]):
        super().__init__()
        self.inner = inner
        self.op = op
        self.name = name
        self.recorder = recorder
        self.fields = fields
        self.settle: Callable[[dict[str, Any], int], None] | None = None
        self.check: Callable[[str | None], None] | None = None
        self.waited = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        log, page = self.recorder.log, self.recorder.page
        where = self.recorder.where()
        bounded = timeout is not None and timeout.total_seconds() > 0
        pace = self.recorder.pace
        if pace is not None:
            pace.settle()
        start = log.arrive()
        self.waited = True
        # The page, as long as it says that the main thread stands in this wait.
        standing = page if page is not None and page.wait(self.op, bounded) else None
        try:
            done = self.inner.wait(timeout) if bounded else self.inner.wait()
            if pace is not None:
                self._learn_source()
                pace.hold(self.op, self.fields)
            if standing is not None:
                standing.go_on()
                standing = None
            if self.check is not None:
                self.check(where)
            return bool(done)
        except BaseException:
            if standing is not None:
                standing.give_up(self.op)
            raise
        finally:
            group, seq = self.fields["group"], self.fields["seq"]
            log.event(
                "wait", self.name, start, log.stamp(), op=self.op, group=group, seq=seq, where=where
            )
            self.recorder.followed.pop(self.op, None)
            self._learn_source()

    def _learn_source(self) -> None:
        if self.settle is not None:
            with contextlib.suppress(RuntimeError):
                self.settle(self.fields, self.inner._source_rank())
            self.settle = None

    def get_future(self) -> Any:
        pace = self.recorder.pace
        inner = self.inner.get_future()
        self.recorder.followed[self.op] = None
        return inner if pace is None else pace.future(self.op, inner)

    def is_completed(self) -> bool:
        pace = self.recorder.pace
        return bool(self.inner.is_completed()) and (pace is None or pace.completed(self.op))

    def is_success(self) -> bool:
        return bool(self.inner.is_success())

    def exception(self) -> Any:
        return self.inner.exception()

    def synchronize(self) -> None:
        self.inner.synchronize()

    def result(self) -> Any:
        return self.inner.result()

    def source_rank(self) -> int:
        return int(self.inner.source_rank())

    def _source_rank(self) -> int:
        return int(self.inner._source_rank())

    def block_current_stream(self) -> None:
        self.inner.block_current_stream()

    def get_future_result(self) -> Any:
        return self.inner.get_future_result()


class RecordedMessage(RecordedWork):
    """The handle of a message, which gloo keeps no longer than this: its end is noted, too."""

    page_group = -1

    def __del__(self) -> None:
        page = self.recorder.page
        if not self.waited and page is not None and self.fields["peer"] >= 0:
            page.post(_KIND["dropped"], self.name, self.page_group, self.fields, -1)


class Recorded(dist.ProcessGroup):
    """A process group that notes each call and passes it to the group in whose place it stands.

    Methods are named as torch names them, old names too: C++ looks some of them up.
    """

    def __init__(self, real: dist.ProcessGroup, ranks: list[int], recorder: Recorder) -> None:
        super().__init__(real.rank(), real.size())  # type: ignore[call-arg]
        private.copy_backends(real, self)
        self.real = real
        self.ranks = ranks
        self.recorder = recorder
        name, words = real.group_name, real.group_desc
        self._backends = private.backends(real)
        # Where a barrier goes: the group's backend, if it has but one.
        self._only_device = (
            next(iter(self._backends)) if len({*self._backends.values()}) == 1 else ""
        )
        group = Group(name, _description(name, words), tuple(ranks))
        self.index = recorder.log.group(group)
        self.page_group = -1 if recorder.page is None else recorder.page.group(group)

    def get_group_store(self) -> Any:
        return self.real.get_group_store()

    # Collectives. The first argument that holds this rank's own data is the payload.

    def allreduce(self, *a: Any, **k: Any) -> Any:
        return self._collective("all_reduce", "allreduce", a, k, _arg(a, k, 0, "tensors", "tensor"))

    def allreduce_coalesced(self, *a: Any, **k: Any) -> Any:
        return self._collective("all_reduce", "allreduce_coalesced", a, k, _arg(a, k, 0, "tensors"))

    def broadcast(self, *a: Any, **k: Any) -> Any:
        return self._collective("broadcast", "broadcast", a, k, _arg(a, k, 0, "tensors", "tensor"))

    def reduce(self, *a: Any, **k: Any) -> Any:
        return self._collective("reduce", "reduce", a, k, _arg(a, k, 0, "tensors", "tensor"))

    def allgather(self, *a: Any, **k: Any) -> Any:
        return self._collective("all_gather", "allgather", a, k, _input(a, k), _whole(a, k))

    def allgather_coalesced(self, *a: Any, **k: Any) -> Any:
        return self._collective("all_gather", "allgather_coalesced", a, k, _input(a, k))

    def all_gather_single(self, *a: Any, **k: Any) -> Any:
        return self._collective("all_gather", "all_gather_single", a, k, _input(a, k), _whole(a, k))

    def all_gather_single_coalesced(self, *a: Any, **k: Any) -> Any:
        return self._collective("all_gather", "all_gather_single_coalesced", a, k, _input(a, k))

    def gather(self, *a: Any, **k: Any) -> Any:
        data = _input(a, k)
        return self._collective("gather", "gather", a, k, data, self.size() * _elements(data))

    def scatter(self, *a: Any, **k: Any) -> Any:
        data = _input(a, k)
        received = _arg(a, k, 0, "output_tensors", "output_tensor")
        whole = self.size() * _elements(received)
        payload = data if _tensors(data) else received
        return self._collective("scatter", "scatter", a, k, payload, whole)

    def reduce_scatter(self, *a: Any, **k: Any) -> Any:
        return self._collective("reduce_scatter", "reduce_scatter", a, k, _input(a, k))

    def reduce_scatter_single(self, *a: Any, **k: Any) -> Any:
        return self._collective("reduce_scatter", "reduce_scatter_single", a, k, _input(a, k))

    def reduce_scatter_single_coalesced(self, *a: Any, **k: Any) -> Any:
        name = "reduce_scatter_single_coalesced"
        return self._collective("reduce_scatter", name, a, k, _input(a, k))

    def alltoall(self, *a: Any, **k: Any) -> Any:
        return self._collective("all_to_all", "alltoall", a, k, _input(a, k))

    def all_to_all_single(self, *a: Any, **k: Any) -> Any:
        return self._collective("all_to_all", "all_to_all_single", a, k, _input(a, k))

    def barrier(self, *a: Any, **k: Any) -> Any:
        if not a and "opts" in k:
            a, k = (k["opts"],), {}
        return self._collective("barrier", "barrier", a, k, ())

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Messages. `peer` comes as a rank of this group.

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        return self._message("send", "send", (tensors, peer, tag), tensors, self.ranks[peer], tag)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        return self._message("recv", "recv", (tensors, peer, tag), tensors, self.ranks[peer], tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Any:
        return self._message("recv", "recv_anysource", (tensors, tag), tensors, -1, tag)

    def _collective(
        self, name: str, method: str, args: Any, kwargs: Any, payload: Any, whole: int = -1
    ) -> Any:
        fields: dict[str, Any] = {"group": self.index}
        options = args[-1] if args else None
        if name in ("broadcast", "reduce", "gather", "scatter"):
            root = getattr(options, "rootRank", None)
            if root is not None:
                fields["peer"] = self.ranks[root]
        if name in ("all_reduce", "reduce", "reduce_scatter"):
            fields["reduction"] = _reduction(getattr(options, "reduceOp", options))
        key = (self.index,)
        return self._pass_on("collective", name, method, args, kwargs, payload, fields, key, whole)

    def _message(self, kind: str, method: str, args: Any, tensors: Any, peer: int, tag: int) -> Any:
        me = self.recorder.log.rank
        fields: dict[str, Any] = {"group": self.index, "tag": tag, "peer": peer, "seq": -1}
        ends = (me, peer) if kind == "send" else (peer, me)
        key = (self.index, *ends, tag) if peer >= 0 else ()
        work = self._pass_on(kind, kind, method, args, {}, tensors, fields, key)
        if work is not None:
            work.page_group = self.page_group
        if peer < 0 and work is not None:  # which message it is turns out when it has arrived
            work.settle = self._settle
        if kind == "send" and work is not None and self.recorder.check_buffers:
            work.check = _unchanged(me, tensors, fields)
        return work

    def _settle(self, fields: dict[str, Any], source: int) -> None:
        fields["peer"] = self.ranks[source]
        me = self.recorder.log.rank
        fields["seq"] = self.recorder.count(self.index, fields["peer"], me, fields["tag"])
        if self.recorder.page is not None:
            self.recorder.page.post(_KIND["recv"], "recv", self.page_group, fields, -1)

    def _pass_on(
        self, kind: str, name: str, method: str, args: Any, kwargs: Any, payload: Any,
        fields: dict[str, Any], key: tuple[int, ...], whole: int = -1,
    ) -> Any:  # fmt: skip
        recorder = self.recorder
        log = recorder.log
        pace = recorder.pace
        if pace is not None:
            pace.settle()
        start = log.arrive()
        op = log.next_operation()
        if key:
            fields["seq"] = recorder.count(*key)
        tensors = _tensors(payload)
        count = size = 0
        for tensor in tensors:
            elements = tensor.numel()
            count += elements
            size += elements * tensor.element_size()
        where = recorder.where()
        fields["op"], fields["count"], fields["bytes"], fields["where"] = op, count, size, where
        fields["dtype"] = _dtype(tensors[0].dtype) if tensors else None
        if recorder.page is not None:
            recorder.page.post(_KIND[kind], name, self.page_group, fields, whole)
        if pace is not None:
            pace.post(kind, name, fields)
        try:
            work = self._call(method, args, kwargs, tensors)
        except BaseException:
            if key:
                recorder.take_back(fields["seq"], *key)
            if recorder.page is not None:
                recorder.page.post(_KIND["refused"], name, self.page_group, fields, whole)
            raise
        noted = log.event(kind, name, start, log.stamp(), **fields)
        if work is None:  # inside torch's coalescing: the handle comes at the end of the block
            return None
        if isinstance(log, CudaLog):
            log.follow(op, work)
        elif pace is None and getattr(args[-1] if args else None, "asyncOp", True):
            # Who asked for a synchronous call waits next, and that wait tells when it was complete.
            # gloo's messages and its reduce-scatter have no future: their wait tells, too.
            try:  # noqa: SIM105  (entering a context manager costs more than the call)
                work.get_future().then(lambda _: log.complete(op))
            except RuntimeError:
                pass
        # Nothing here keeps the handle: one that the program drops is dropped, as without a record.
        handle = RecordedWork if kind == "collective" else RecordedMessage
        return handle(work, op, name, recorder, noted)

    def _call(self, method: str, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        # Straight to the backend, where torch's own dispatch would end up: through the dispatcher
        # a call costs 100 µs more. A call of another shape is left to the group that torch made.
        name = _BACKEND_NAMES.get(method)
        if name and not kwargs and args and isinstance(args[-1], _LAST):
            device = tensors[0].device.type if tensors else self._only_device
            backend = self._backends.get(device)
            if backend is not None:
                # gloo's threads work as this one does; a mode there would lose their errors.
                with private.unseen_by_modes():
                    return getattr(backend, name)(*args)
        return getattr(self.real, method)(*args, **kwargs)


@contextlib.contextmanager
def recording(rank: int, page: Page | None = None, cuda: bool = False) -> Iterator[Recorder]:
    """Record this process: groups that torch makes from here on, spans, FLOPs.

    Parameters
    ----------
    rank : its global rank
    page : where to write the last operation for the launcher
    cuda : whether this rank works on a GPU
    """
    recorder = Recorder(rank, page, cuda)
    before = write_to(recorder.log)
    try:
        with (
            private.new_groups_by(recorder.group),
            private.wrap_backward(recorder.around_backward),
            private.coalesced_batches(lambda group: isinstance(group, Recorded)),
            CountFlops(recorder.log),
        ):
            yield recorder
    finally:
        write_to(before)


def _arg(args: Any, kwargs: Any, index: int, *names: str) -> Any:
    if len(args) > index:
        return args[index]
    return next((kwargs[n] for n in names if n in kwargs), ())


def _input(args: Any, kwargs: Any) -> Any:
    return _arg(args, kwargs, 1, "input_tensors", "input_tensor", "input", "inputs", "input_list")


def _tensors(payload: Any) -> list[torch.Tensor]:
    if isinstance(payload, torch.Tensor):
        return [payload]
    if len(payload) == 1 and isinstance(payload[0], torch.Tensor):
        return payload  # type: ignore[no-any-return]
    return [t for item in payload for t in _tensors(item)]


@cache
def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _reduction(op: Any) -> str | None:
    kind = getattr(op, "op", op)
    return getattr(kind, "name", None)


def _description(name: str, words: str) -> str:
    if words in ("default_pg", "", "undefined"):
        return "default" if words == "default_pg" else name
    return words.removeprefix("mesh_")


def _whole(args: Any, kwargs: Any) -> int:
    """Elements that an all-gather gives every rank: the same on all, however uneven the parts."""
    return _elements(_arg(args, kwargs, 0, "output_tensors", "output_tensor", "output"))


def _elements(payload: Any) -> int:
    return sum(tensor.numel() for tensor in _tensors(payload))


def _unchanged(rank: int, tensors: list[torch.Tensor], fields: dict[str, Any]) -> Any:
    """A function that raises when a message's buffer is no longer what it was now."""
    before = _checksum(tensors)

    def check(where: str | None) -> None:
        if _checksum(tensors) != before:
            raise Mismatch(
                f"the buffer of a message was changed before its wait: part of what arrived may be "
                f"the new content\n  rank {rank}: send to rank {fields['peer']} of "
                f"{fields['count']} {fields['dtype']}, @{fields['where']}\n"
                f"  rank {rank}: its wait, @{where}",
                "buffer",
            )

    return check


def _checksum(tensors: list[torch.Tensor]) -> int:
    total = 0
    with private.unseen_by_modes():
        for tensor in tensors:
            data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            total = zlib.crc32(data.numpy().tobytes(), total)
    return total
