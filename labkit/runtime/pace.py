"""Paced runs: real ranks, real messages, real waiting, on the clock of a cluster that is not there.

Ranks that share cores do not run side by side, but ranks that sleep do. So each rank does its small
mathematics, and then sleeps until a device would have done it; what comes from another rank it
gets no earlier than the cluster's links would have brought it. The rules are those of
`trace.engine`, followed while the program runs:

* A span that says ``seconds=`` lasts that, whatever waits and other such spans inside it take.
  Compute outside such spans lasts its FLOPs at the device's rate; what has none takes no time.
* A message leaves when it was posted and its ordered pair's link is free, and arrives after
  bytes/bandwidth and one latency. A send is over when its receive is posted.
* A collective ends its ring's cost after its last rank has posted it and its group's previous one
  has ended.

Every rank keeps a time of its own, `at`: when it would be where it is, had everything taken its set
time. It tells that time with what it posts (`posts`), and sleeps until it. What the machine takes
on top, it makes up for in its next sleep. If it is too late for that (`BEHIND`), its time moves on
to the real one, and the run says how often that happened.

Cost: some 50 µs an operation. Sleeps end up to 0.1 ms late on a quiet machine, and by what other
ranks compute in between on a shared core: spans of 20 ms and more hold their pace.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from labkit.runtime.posts import BEGIN, COLLECTIVE, RECV, SEND, Key, number
from labkit.trace import Cluster, Group
from labkit.trace.log import Log

__all__ = ["Pace", "Paced", "note"]

BEHIND = 10_000_000  # ns that a rank may be late and make up for: half of a span that holds
SHORT = 0.02  # seconds: spans that are shorter hold their pace less well
_LOOK = 0.0005  # seconds between two looks for what another rank posts


class Told(Protocol):
    """What ranks tell each other; `posts.Posts` in a run."""

    def write(self, key: Key, when: int, size: int = 0) -> None: ...
    def get(self, key: Key) -> tuple[int, int] | None: ...
    def drop(self, key: Key) -> None: ...


@dataclass(frozen=True)
class Paced:
    """How well a rank kept its pace.

    Parameters
    ----------
    late : how often it was too late to make up for it
    behind : seconds, in all, by which it was
    shortest : seconds of the shortest span that said any (0 does not count)
    """

    late: int = 0
    behind: float = 0.0
    shortest: float = math.inf


@dataclass
class _Span:
    name: str
    begin: int  # ns
    until: int | None  # when its own seconds are over; None: it says none


@dataclass
class _Operation:
    name: str
    posted: int  # ns
    fields: Mapping[str, Any]
    group: Group
    anyone: bool = False  # a receive whose sender is not known yet
    done: int | None = None


class Pace:
    """The pace of one rank.

    Parameters
    ----------
    log : of this rank; FLOPs are read there, and completions written
    cluster : what the rank is to take for its device and its links
    told : where ranks tell when they posted what
    slow : factor on the duration of compute
    clock, sleep : ns, and seconds; a test has its own

    Raises
    ------
    ValueError : the device says no FLOP/s that it reaches
    """

    def __init__(
        self,
        log: Log,
        cluster: Cluster,
        told: Told,
        slow: float = 1.0,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.log = log
        self.cluster = cluster
        self.told = told
        self.slow = slow
        self.at = clock()
        self._clock, self._sleep = clock, sleep
        self._rate = cluster.device.flops()
        self._flops = 0  # that have been slept off
        self._spans: list[_Span] = []
        self._operations: dict[int, _Operation] = {}
        self._collectives: dict[tuple[int, int], int] = {}  # (group, number) -> operation
        self._ended: defaultdict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._numbers: dict[int, int] = {}
        self._free: defaultdict[int, int] = defaultdict(int)  # peer -> when its link is free, ns
        self._costs: dict[Any, int] = {}
        self._lock = threading.RLock()
        self._late = 0
        self._behind = 0
        self._shortest = math.inf

    def begin(self, ranks: int) -> None:
        """Start together with all ranks: everyone waits here until all have come."""
        rank = self.log.rank
        self.told.write((BEGIN, 0, rank, rank, 0, 0), self._clock())
        came = [self._await(self.told.get, (BEGIN, 0, r, r, 0, 0))[0] for r in range(ranks)]
        self.at = max(came) + BEHIND
        self._until(self.at)
        self._flops = self.log.flops

    def finish(self) -> Paced:
        """Note when the rest was complete, where that is known, and say how it went."""
        for op in [op for op, o in self._operations.items() if o.done is None]:
            with contextlib.suppress(RuntimeError):
                self.when(op)
        return Paced(self._late, self._behind * 1e-9, self._shortest)

    # Compute

    def open(self, name: str, tags: Mapping[str, Any]) -> None:
        """A span begins."""
        if self.log.thread():
            return
        self.settle()
        until = None
        if "seconds" in tags:
            seconds = tags["seconds"]
            plain = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not plain or not 0 <= seconds < math.inf:
                raise ValueError(f"span {name!r}: seconds={seconds!r}: give seconds, 0 or more")
            until = self.at + _ns(seconds * self.slow)
            self._shortest = min(self._shortest, seconds or math.inf)
        self._spans.append(_Span(name, self.at, until))

    def close(self, name: str) -> None:
        """A span ends: sleep what is left of it."""
        if self.log.thread():
            return
        span = next((s for s in reversed(self._spans) if s.name == name), None)
        self.settle()
        if span is None:
            return
        if span.until is not None:
            self.at = max(self.at, span.until)
            self._until(self.at)
            self._catch_up(late=True)
        self._spans.remove(span)
        if span.until is not None:
            self._outlast(self.at - span.begin)

    def rest(self, name: str) -> None:
        """Sleep now what span `name`, the innermost that says `seconds`, would at its end."""
        saying = self._saying()
        if self.log.thread() == 0 and saying is not None and saying.name == name:
            self.at = max(self.at, saying.until or 0)
            self._until(self.at)

    def settle(self) -> None:
        """Bring this rank's time to here; called before everything that is stamped."""
        if self.log.thread():
            return
        flops, self._flops = self.log.flops - self._flops, self.log.flops
        saying = self._saying()
        if saying is not None:  # its time passes as it really does, until it is over
            self.at = max(self.at, min(self._clock(), saying.until or 0))
            return
        self.at += _ns(flops / self._rate * self.slow)
        self._until(self.at)
        self._catch_up(late=flops > 0)

    # Operations

    def post(self, kind: str, name: str, fields: Mapping[str, Any]) -> None:
        """Operation ``fields["op"]`` begins: tell the ranks that it concerns."""
        with self._lock:
            when = self._clock() if self.log.thread() else self.at
            operation = _Operation(name, when, fields, self.log.groups[fields["group"]])
            self._operations[fields["op"]] = operation
            size = fields["bytes"]
            if kind == "collective":
                self._collectives[fields["group"], fields["seq"]] = fields["op"]
                self.told.write(self._entered(operation, self.log.rank), when, size)
            elif kind == "send":
                link = self.cluster.link(self.log.rank, fields["peer"])
                free = max(when, self._free[fields["peer"]]) + _ns(size / link.bandwidth)
                self._free[fields["peer"]] = free
                self.told.write(self._end(operation, SEND), free + _ns(link.base + link.latency))
            elif fields["peer"] >= 0:
                self.told.write(self._end(operation, RECV), when)
            else:
                operation.anyone = True

    def hold(self, op: int, fields: Mapping[str, Any]) -> None:
        """The wait for `op` is over on this machine: sleep until it is on the cluster.

        Parameters
        ----------
        fields : of the operation, as they are known by now (who sent a message)
        """
        self._operations[op].fields = fields
        done = self._when_done(op)
        if self.log.thread():
            self._until(done)
            return
        before = self.at
        self.at = max(self.at, done)
        self._until(self.at)
        self._catch_up(late=True)
        self._outlast(self.at - before)

    def passed(self, ops: Iterable[int]) -> None:
        """A backward has waited inside C++ for those of `ops` that are complete by now."""
        times = [self.when(op) for op in ops]
        before, now = self.at, self._clock()
        self.at = max([self.at, *(t for t in times if t is not None and t <= now)])
        self._catch_up(late=True)
        self._outlast(self.at - before)

    def completed(self, op: int) -> bool:
        """Whether `op` is complete on the cluster."""
        done = self.when(op)
        return done is not None and self._clock() >= done

    def future(self, op: int, inner: Any) -> Any:
        """`inner`, an operation's future, but complete no earlier than on the cluster."""
        from torch.futures import Future

        outer: Any = Future()

        def release(ended: Any) -> None:
            try:
                self._until(self._when_done(op))
                value = ended.value()
            except Exception as error:
                outer.set_exception(error)
            else:
                outer.set_result(value)

        def start(ended: Any) -> None:  # on a thread of gloo's, which must go on
            threading.Thread(target=release, args=(ended,), daemon=True).start()

        inner.add_done_callback(start)
        return outer

    # When an operation is complete

    def _when_done(self, op: int) -> int:
        """Waits until it is known: some ranks of a collective are done before others have come."""
        operation = self._operations[op]
        if operation.name == "send" and self.when(op) is None:
            operation.done = self._clock()  # it is over, so its receive was posted, by whomever
        done: int = self._await(self.when, op)
        return done

    def when(self, op: int) -> int | None:
        """When `op` is complete on the cluster (ns); None: not known yet."""
        with self._lock:
            return self._completion(op)

    def _completion(self, op: int) -> int | None:
        operation = self._operations[op]
        if operation.anyone and operation.fields["peer"] >= 0:
            operation.anyone = False
            self.told.write(self._end(operation, RECV), operation.posted)
        if operation.done is None:
            if operation.name not in ("send", "recv"):
                self._follow(operation)
            elif operation.fields["peer"] >= 0:
                other = RECV if operation.name == "send" else SEND
                found = self.told.get(self._end(operation, other))
                if found is not None:
                    operation.done = max(operation.posted, found[0])
                    self.told.drop(self._end(operation, other))
        if operation.done is not None:
            self.log.done[op] = operation.done
        return operation.done

    def _follow(self, operation: _Operation) -> None:
        """One collective of a group after the other, as far as all its ranks have come."""
        index = operation.fields["group"]
        while (index, self._ended[index][0]) in self._collectives:
            seq, before = self._ended[index]
            op = self._collectives[index, seq]
            one = self._operations[op]
            keys = [self._entered(one, rank) for rank in one.group.ranks]
            entries = [self.told.get(key) for key in keys]
            came = [entry for entry in entries if entry is not None]
            if len(came) < len(entries):
                return
            start = max(before, *(when for when, _ in came))
            size = max(size for _, size in came)
            one.done = self.log.done[op] = start + self._cost(one.name, size, one.group.ranks)
            self._ended[index] = (seq + 1, one.done)
            del self._collectives[index, seq]
            for key in keys:
                self.told.drop(key)

    def _cost(self, name: str, size: int, ranks: Sequence[int]) -> int:
        what = (name, size, ranks)
        if what not in self._costs:
            self._costs[what] = _ns(self.cluster.collective(name, float(size), ranks))
        return self._costs[what]

    def _entered(self, operation: _Operation, rank: int) -> Key:
        group = self._number(operation)
        return (COLLECTIVE, group, rank, rank, 0, operation.fields["seq"])

    def _end(self, operation: _Operation, kind: int) -> Key:
        me, fields = self.log.rank, operation.fields
        ends = (me, fields["peer"]) if operation.name == "send" else (fields["peer"], me)
        return (kind, self._number(operation), *ends, fields["tag"], fields["seq"])

    def _number(self, operation: _Operation) -> int:
        index = operation.fields["group"]
        if index not in self._numbers:
            self._numbers[index] = number(operation.group)
        return self._numbers[index]

    # Time

    def _saying(self) -> _Span | None:
        return next((s for s in reversed(self._spans) if s.until is not None), None)

    def _outlast(self, ns: int) -> None:
        """What is not compute of the span around it makes that end so much later."""
        saying = self._saying()
        if saying is not None and saying.until is not None:
            saying.until += ns

    def _until(self, when: int) -> None:
        while (left := when - self._clock()) > 0:
            self._sleep(left * 1e-9)

    def _catch_up(self, late: bool) -> None:
        """Go on from the real time if this rank is too late to make up for it."""
        behind = self._clock() - self.at
        if behind > BEHIND:
            self.at += behind
            if late and self._spans:  # outside of spans, nobody looks
                self._late += 1
                self._behind += behind

    def _await(self, look: Callable[[Any], Any], what: Any) -> Any:
        while (found := look(what)) is None:
            self._sleep(_LOOK)
        return found


def note(cluster: Cluster, paced: Iterable[Paced]) -> str:
    """What is to be said beside a paced trace."""
    parts = list(paced)
    told = [f"on {cluster}", "compute: as the spans say, elsewhere FLOPs"]
    shortest = min((p.shortest for p in parts), default=math.inf)
    if shortest < SHORT:
        told.append(f"spans of {shortest * 1e3:g} ms: pacing holds from {SHORT * 1e3:g} ms up")
    late = sum(p.late for p in parts)
    if late:
        times = "once" if late == 1 else f"{late} times"
        told.append(
            f"this machine was slower than the pace {times}, "
            f"{max(p.behind for p in parts) * 1e3:.0f} ms on the rank that was last"
        )
    return "; ".join(told)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
