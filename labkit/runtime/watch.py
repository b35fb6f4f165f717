"""Who waits for whom: a launcher's view of its ranks, from the pages that they share with it.

A rank in a wait waits for the ranks that have not posted the other side. An operation whose sides
are all posted is on its way, however long it takes. A deadlock is a set of ranks each of which
needs something of a rank of the set, or of a finished or dead one. A rank that computes or sleeps
is in none, since it may still post what the others need; nor is one that has another thread of its
own, or a wait with a timeout.

Cost: the launcher looks ten times a second, about 2 µs a call that was posted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from labkit.runtime.calls import Call
from labkit.runtime.match import Clash, Matcher
from labkit.runtime.page import Main, Reader, Standing
from labkit.trace.events import OPERATIONS

_KEPT = 4096  # calls of a rank that are remembered


def stuck(needs: Mapping[int, Sequence[frozenset[int]]], gone: frozenset[int]) -> frozenset[int]:
    """The ranks that can never go on: the largest set in which each needs something of that set.

    Parameters
    ----------
    needs : for each rank that waits, sets of ranks: it goes on once one rank of each set has posted
        what it waits for. Without any it is about to go on
    gone : ranks that will post nothing more, finished or dead
    """
    found = {rank for rank in needs if rank not in gone}
    while True:
        kept = {rank for rank in found if any(its <= found | gone for its in needs[rank])}
        if kept == found:
            return frozenset(found)
        found = kept


class Watch:
    """Reads the pages of a run's ranks.

    Parameters
    ----------
    ranks : how many
    folder : the run's folder
    patience : seconds for which a deadlock must stand still
    """

    def __init__(self, ranks: int, folder: Path, patience: float) -> None:
        self.patience = patience
        self._pages = [Reader(r, folder / f"rank-{r}.page") for r in range(ranks)]
        self._standing = [Standing()] * ranks
        self._calls: list[dict[int, Call]] = [{} for _ in range(ranks)]
        self._last: list[Call | None] = [None] * ranks
        self._matcher = Matcher()
        self._seen: tuple[object, float] = (None, 0.0)
        self.certain = False  # the clash was there at the last look, too: no call was refused

    @property
    def clash(self) -> Clash | None:
        """The first calls that met and do not fit."""
        return self._matcher.clash

    @property
    def complete(self) -> bool:
        """Whether every call was seen: else the ranks' logs have to be compared, too."""
        return not any(page.lost for page in self._pages)

    def look(self) -> None:
        """Take in what the ranks have written since the last time."""
        before = self._matcher.clash
        self._standing = [page.standing() for page in self._pages]
        for page in self._pages:
            calls = page.calls()
            if not calls:
                continue
            kept = self._calls[page.rank]
            posted = [call for call in calls if call.kind in OPERATIONS]
            kept.update((call.op, call) for call in posted)
            self._last[page.rank] = posted[-1] if posted else self._last[page.rank]
            for op in list(kept)[: max(len(kept) - _KEPT, 0)]:
                del kept[op]
            self._matcher.take(calls)
        self.certain = before is not None and before is self._matcher.clash

    def deadlock(self, gone: frozenset[int], now: float) -> dict[int, Call]:
        """What the ranks of a deadlock stand in, once it has stood still for long enough.

        Parameters
        ----------
        gone : ranks that have finished or died
        now : seconds on any clock
        """
        needs = {
            r: [its for call in self.waited(r) for its in self._matcher.needs(call)]
            for r, standing in enumerate(self._standing)
            if standing.alone
        }
        found = stuck(needs, gone)
        state = (found, gone, tuple(self._standing[r] for r in sorted(found)))
        if not found or state != self._seen[0]:
            self._seen = (state, now)
            return {}
        if now - self._seen[1] < self.patience:
            return {}
        return {r: call for r in sorted(found) if (call := self.unmet(r)) is not None}

    def waited(self, rank: int) -> list[Call]:
        """The calls that a rank's main thread waits for now."""
        standing = self._standing[rank]
        if standing.main not in (Main.WAITING, Main.JOINING):
            return []
        known = self._calls[rank]
        return [known[op] for op in standing.ops if op in known]

    def unmet(self, rank: int) -> Call | None:
        """The first call that a rank waits for, and that others have not met."""
        return next((c for c in self.waited(rank) if self._matcher.missing(c)), None)

    def gave_up(self, rank: int) -> Call | None:
        """The unmet call whose wait raised, if that is the last that the rank did."""
        standing = self._standing[rank]
        call = self._calls[rank].get(standing.ops[0]) if standing.main is Main.GAVE_UP else None
        return call if call is not None and self._matcher.missing(call) else None

    def missing(self, call: Call) -> list[int]:
        """The ranks that have not posted the other side of a call."""
        return sorted(self._matcher.missing(call))

    def last(self) -> Iterator[Call]:
        """The last call of each rank that has posted any."""
        return (call for call in self._last if call is not None)

    def withdrawn(self, call: Call) -> bool:
        """Whether the other end of a message was dropped before anyone waited for it."""
        return self._matcher.withdrawn(call)

    def close(self) -> None:
        for page in self._pages:
            page.close()
