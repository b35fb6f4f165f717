"""Which calls belong together, which are not met yet, and which do not fit.

Collectives match by (group, sequence number), messages by (group, source, destination, tag, number
among those). That is how gloo and NCCL match them too: not by name, tensor or line. So two ranks
may meet in different operations, and nothing tells them: results are mixed, or all stand still.

Cost: about 2 µs a call. Calls that have met are forgotten.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from labkit.runtime.branches import alternatives
from labkit.runtime.calls import ANYONE, Call
from labkit.trace.events import Group

# Every rank gives or gets as much as every other.
_EVEN = ("all_reduce", "broadcast", "reduce", "reduce_scatter")
_NEAR = 16  # collectives of a group between which a swap of two is looked for

Message = tuple[Group, int, int, int]  # group, from, to, tag


@dataclass(frozen=True)
class Clash:
    """Calls that met and do not fit.

    Parameters
    ----------
    what : in what they differ: "kind", "root", "reduction", "dtype", "size", or "order" for two
        collectives that two ranks entered in a different order
    calls : the two calls; for "order" four: first and second of one rank, then of the other
    """

    what: str
    calls: tuple[Call, ...]


def difference(a: Call, b: Call) -> str | None:
    """In what two calls that met do not fit; None where they do. The order of the two is free.

    Not compared: places (different lines are no error), sizes of what may be uneven (all_to_all,
    gather, scatter, and an all_gather of which only this rank's part is known).
    """
    if a.kind != "collective":
        if a.bytes != b.bytes:
            return "size"
        return "dtype" if _differ(a.dtype, b.dtype) else None
    if a.name != b.name:
        return "kind"
    if a.peer != b.peer:
        return "root"
    if a.reduction != b.reduction:
        return "reduction"
    if _differ(a.dtype, b.dtype):
        return "dtype"
    if a.name in _EVEN and a.elements != b.elements:
        return "size"
    if a.whole >= 0 and b.whole >= 0 and a.whole != b.whole:
        return "size"
    return None


def crossed(first: dict[int, Call], second: dict[int, Call]) -> tuple[Call, ...] | None:
    """Two collectives that fit, entered in another order by some ranks: line A, then B; B, then A.

    Different lines alone are no error, nor are roles that change hands (one rank's line A, the
    others' B, and next time another rank's A): the very ranks that were at A must be at B next. Two
    ranks that change places do that, too: known by lines that are branches of one `if`.

    Parameters
    ----------
    first, second : the calls of two collectives of one group, by rank

    Returns
    -------
    first and second of one rank, then of another; None where they are not crossed
    """
    a = first[min(first)]
    other = next((c for c in first.values() if c.where != a.where), None)
    if other is None or not a.elements or None in (a.where, other.where):
        return None
    lines = {a.where: other.where, other.where: a.where}
    calls = [*first.values(), *second.values()]
    if any(difference(a, c) or c.where not in lines or c.elements != a.elements for c in calls):
        return None
    if first.keys() != second.keys():
        return None
    if any(second[r].where != lines[c.where] for r, c in first.items()):
        return None
    if alternatives(a.where, other.where):
        return None
    return (a, second[a.rank], other, second[other.rank])


class Matcher:
    """Takes calls of all ranks, each rank's in its order, and finds what does not fit."""

    def __init__(self) -> None:
        self.clash: Clash | None = None  # the first that was found
        self._entered: defaultdict[tuple[Group, int], int] = defaultdict(int)  # (group, rank)
        self._half: defaultdict[tuple[Group, int], dict[int, Call]] = defaultdict(dict)
        self._split: defaultdict[Group, deque[dict[int, Call]]] = defaultdict(
            lambda: deque(maxlen=_NEAR)
        )
        self._sent: defaultdict[Message, int] = defaultdict(int)
        self._received: defaultdict[Message, int] = defaultdict(int)
        self._messages: dict[tuple[Message, int], Call] = {}  # one end of them
        self._dropped: set[tuple[str, Message, int]] = set()
        self._open: defaultdict[tuple[Group, int, int], set[int]] = defaultdict(set)  # from anyone

    def take(self, calls: Iterable[Call]) -> None:
        for call in calls:
            if call.kind == "collective":
                self._collective(call)
            elif call.kind == "dropped":
                self._dropped.add((call.name, _key(call), call.seq))
            elif call.kind == "refused":
                self._refuse(call)
            else:
                self._message(call)

    def missing(self, call: Call) -> frozenset[int]:
        """The ranks that have not posted the other side of `call`; empty once it is met.

        A receive from anyone that is not met waits for any other rank of its group.
        """
        group = call.group
        if call.kind == "collective":
            return frozenset(r for r in group.ranks if self._entered[group, r] <= call.seq)
        if call.kind == "recv" and call.peer == ANYONE:
            to = call.rank
            keys = [(group, source, to, call.tag) for source in group.ranks if source != to]
            met = any(self._sent[key] > self._received[key] for key in keys)
            met = met or call.op not in self._open[group, to, call.tag]
            return frozenset() if met else frozenset(key[1] for key in keys)
        key = _key(call)
        if call.kind == "send":
            met = self._received[key] > call.seq or bool(self._open[group, call.peer, call.tag])
        else:
            met = self._sent[key] > call.seq
        met = met and not self.withdrawn(call)
        return frozenset() if met else frozenset([call.peer])

    def needs(self, call: Call) -> tuple[frozenset[int], ...]:
        """What `call` still needs: of each set, one rank that posts the other side."""
        missing = self.missing(call)
        if call.kind == "recv" and call.peer == ANYONE:
            return (missing,) if missing else ()
        return tuple(frozenset([rank]) for rank in sorted(missing))

    def withdrawn(self, call: Call) -> bool:
        """Whether the other end of a message was posted, and dropped before anyone waited for it.

        gloo keeps a message only as long as its handle: one that has not met by then is no more.
        """
        other = "recv" if call.kind == "send" else "send"
        return call.kind != "collective" and (other, _key(call), call.seq) in self._dropped

    def _collective(self, call: Call) -> None:
        group, seq = call.group, call.seq
        self._entered[group, call.rank] = max(self._entered[group, call.rank], seq + 1)
        met = self._half[group, seq]
        if met:
            self._compare(next(iter(met.values())), call)
        met[call.rank] = call
        if len(met) < len(group.ranks):
            return
        del self._half[group, seq]
        if len({c.where for c in met.values()}) == 2:
            for earlier in self._split[group]:
                if seq - earlier[call.rank].seq <= _NEAR and (found := crossed(earlier, met)):
                    self.clash = self.clash or Clash("order", found)
            self._split[group].append(met)

    def _message(self, call: Call) -> None:
        group = call.group
        if call.peer == ANYONE:
            self._open[group, call.rank, call.tag].add(call.op)
            return
        key = _key(call)
        if call.kind == "recv":
            self._open[group, call.rank, call.tag].discard(call.op)
        counts = self._sent if call.kind == "send" else self._received
        counts[key] = max(counts[key], call.seq + 1)
        other = self._messages.pop((key, call.seq), None)
        if other is None:
            self._messages[key, call.seq] = call
        elif other.kind != call.kind:
            self._compare(*((other, call) if other.kind == "send" else (call, other)))

    def _refuse(self, call: Call) -> None:
        group, seq = call.group, call.seq
        if self.clash and any((c.rank, c.op) == (call.rank, call.op) for c in self.clash.calls):
            self.clash = None
        if call.name not in ("send", "recv"):
            self._entered[group, call.rank] = min(self._entered[group, call.rank], seq)
            self._half[group, seq].pop(call.rank, None)
            return
        self._open[group, call.rank, call.tag].discard(call.op)
        key = _key(call)
        counts = self._sent if call.name == "send" else self._received
        counts[key] = min(counts[key], seq) if seq >= 0 else counts[key]
        if getattr(self._messages.get((key, seq)), "op", None) == call.op:
            del self._messages[key, seq]

    def _compare(self, a: Call, b: Call) -> None:
        if self.clash is None and (what := difference(a, b)):
            self.clash = Clash(what, (a, b) if a.kind != b.kind or a.rank < b.rank else (b, a))


def first_clash(calls: Iterable[Call]) -> Clash | None:
    """The first of `calls` (each rank's in order) that do not fit; None if all do."""
    matcher = Matcher()
    matcher.take(calls)
    return matcher.clash


def _key(call: Call) -> Message:
    ends = (call.rank, call.peer) if call.name == "send" else (call.peer, call.rank)
    return (call.group, *ends, call.tag)


def _differ(a: str | None, b: str | None) -> bool:
    return a is not None and b is not None and a != b
