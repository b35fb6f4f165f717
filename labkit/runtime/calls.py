"""A call of one rank, as the watchdog sees it: an operation that was posted, by whom and where.

Calls come from two places that say the same: the page that a living rank shares with the launcher
(`page`), and the log that it leaves behind (`calls_of`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from labkit.runtime.failures import place
from labkit.trace.events import OPERATIONS, Group
from labkit.trace.log import RankRecord

ANYONE = -1  # the peer of a receive that takes from any rank
KINDS = (*OPERATIONS, "dropped", "refused")


class Call(NamedTuple):
    """An operation that a rank has posted.

    Fields are those of a trace's event (`elements`: its count). `whole` counts the elements of all
    ranks together where each rank knows them (an all-gather's output), else -1.
    """

    rank: int
    op: int
    # "collective", "send", "recv". Or what became of one of that name and number: "dropped" (nobody
    # waited, and the handle is gone), "refused" (the call raised, and nothing was sent).
    kind: str
    name: str
    group: Group
    seq: int  # -1: a receive from anyone that has not met its message yet
    peer: int
    tag: int
    elements: int
    bytes: int
    dtype: str | None
    reduction: str | None
    where: str | None
    whole: int = -1

    @property
    def title(self) -> str:
        """The operation in words, without its size: "all_reduce #3 (SUM)", "send to rank 1"."""
        if self.kind == "collective":
            words = f"{self.name} #{self.seq}"
            if self.reduction:
                words += f" ({self.reduction})"
        else:
            who = "any rank" if self.peer == ANYONE else f"rank {self.peer}"
            words = f"{self.kind} {'to' if self.kind == 'send' else 'from'} {who}"
            if self.tag > 0:
                words += f" (tag {self.tag})"
        group = self.group.description
        return words if group == "default" else f'{words} in group "{group}"'

    def __str__(self) -> str:
        if not self.elements:
            return self.title
        size, pieces = str(self.elements), len(self.group.ranks)
        if self.name == "scatter" and self.rank == self.peer:  # the others are given a piece each
            size = f"{pieces} × {self.elements // pieces}"
        return f"{self.title} of {size} {self.dtype}"


def calls_of(record: RankRecord) -> Iterator[Call]:
    """The calls that a finished log holds, in the order in which they were posted."""
    for entry in record.entries:
        if len(entry) == 7 and entry[4] in OPERATIONS:
            name, fields = entry[5], entry[6]
            yield Call(
                record.rank, fields["op"], entry[4], name, record.groups[fields["group"]],
                fields["seq"], fields.get("peer", -1), fields.get("tag", -1), fields["count"],
                fields["bytes"], fields["dtype"], fields.get("reduction"), fields["where"],
            )  # fmt: skip


def told_place(where: str | None) -> str:
    """ "file:line" as a learner knows it: a cell by its number, a file by its path."""
    found = re.fullmatch(r"(.+):(\d+)", where or "", re.DOTALL)
    return place(found[1], int(found[2])) if found else "an unknown place"
