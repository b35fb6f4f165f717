"""One page a rank, shared with the launcher: what the rank has posted, and where it stands.

The rank writes, the launcher reads without the rank's help, so it can be read when the rank hangs
in C++ or has died there. It is a file in the run's private folder, mapped into memory by both:

    word 0      rows written so far      word 1    where the main thread is
    word 2      bytes of text so far     word 3…   the operations that a join waits for
    rows        a ring of the last 4096 calls
    text        names, places and groups, each written once; a row holds their numbers

Whoever writes puts the content first and then one word that publishes it, a single store. A reader
copies rows and then looks at word 0 again: what was overwritten meanwhile counts as lost. Every row
carries its own number besides.

Cost: about 2 µs a call, 0.5 µs a wait.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import struct
import threading
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from labkit.runtime.calls import KINDS, Call
from labkit.runtime.threads import is_alone
from labkit.trace.events import Group

_WORD = struct.Struct("@q")
_ROW = struct.Struct("@6q8i")
_ROWS = 4096
_JOINED = 64  # operations of one join that are told
_AT_JOIN = 3 * 8
_AT_ROWS = 1024
_AT_TEXT = _AT_ROWS + _ROWS * _ROW.size
_TEXT = 1 << 17
_KEPT = 4096  # of that, for names that have to be known
_SIZE = _AT_TEXT + _TEXT
_LENGTH = struct.Struct("@H")


class Main(IntEnum):
    """Where a rank's main thread is."""

    RUNNING = 0
    WAITING = 1  # in the wait of an operation
    JOINING = 2  # at the end of a backward, for what C++ waits for
    GAVE_UP = 3  # the last wait raised


class Standing(NamedTuple):
    """Where a rank's main thread is, and for which operations it waits there."""

    main: Main = Main.RUNNING
    ops: tuple[int, ...] = ()
    alone: bool = True  # no other thread of the rank, and no timeout of its own, can end the wait
    posted: int = 0


class Page:
    """The writer's side.

    Parameters
    ----------
    path : the file; made if it is not there
    """

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.write(bytes(_SIZE))  # a full disk says so here, not by a signal later
            file.flush()
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._rows = 0
        self._used = 0
        self._written = 0
        self._texts: dict[str | None, int] = {None: -1}
        self._lock = threading.RLock()
        self._main = threading.get_ident()

    def post(self, kind: int, name: str, group: int, fields: Mapping[str, Any], whole: int) -> None:
        """Note a call.

        Parameters
        ----------
        kind : index into `calls.KINDS`
        name, fields : as the log has them
        group : what `group` gave
        whole : elements of all ranks together, or -1
        """
        get = fields.get
        with self._lock:
            row = self._rows
            _ROW.pack_into(
                self._map, _AT_ROWS + row % _ROWS * _ROW.size,
                row, fields["op"], fields["seq"], fields["count"], fields["bytes"], whole,
                kind, self._text(name), group, get("peer", -1), get("tag", -1),
                self._text(fields["dtype"]), self._text(get("reduction")),
                self._text(fields["where"], _TEXT - _KEPT),
            )  # fmt: skip
            self._rows = row + 1
            _WORD.pack_into(self._map, 0, row + 1)

    def group(self, group: Group) -> int:
        """The number of a group, for `post`."""
        with self._lock:
            words = json.dumps([group.name, group.description, group.ranks])
            return self._text(words, _TEXT - _KEPT)

    def _text(self, words: str | None, room: int = _TEXT) -> int:
        number = self._texts.get(words)
        if number is not None:
            return number
        assert words is not None
        data = words.encode("utf-8", "replace")
        end = self._used + _LENGTH.size + len(data)
        if end > room or len(data) > 0xFFFF:  # a row with an unknown group is passed over
            self._texts[words] = -1
            return -1
        at = _AT_TEXT + self._used
        _LENGTH.pack_into(self._map, at, len(data))
        self._map[at + _LENGTH.size : _AT_TEXT + end] = data
        self._texts[words] = number = self._written
        self._written += 1
        self._used = end
        _WORD.pack_into(self._map, 16, end)
        return number

    def wait(self, op: int, bounded: bool) -> bool:
        """The main thread goes into the wait of `op`; False where another thread does.

        Parameters
        ----------
        op : the operation's number
        bounded : this wait has a timeout of its own
        """
        if threading.get_ident() != self._main:
            return False
        self._stand(Main.WAITING, op, not bounded and is_alone())
        return True

    def join(self, ops: Sequence[int]) -> None:
        """The main thread stands at the end of a backward, until `ops` are complete."""
        if threading.get_ident() == self._main:
            told = ops[-_JOINED:]
            struct.pack_into(f"@{len(told)}q", self._map, _AT_JOIN, *told)
            self._stand(Main.JOINING, len(told), is_alone())

    def go_on(self) -> None:
        """The main thread runs."""
        if threading.get_ident() == self._main:
            self._stand(Main.RUNNING, 0, True)

    def give_up(self, op: int) -> None:
        """The wait of `op` has raised."""
        self._stand(Main.GAVE_UP, op, True)

    def _stand(self, main: Main, number: int, alone: bool) -> None:
        _WORD.pack_into(self._map, 8, main | (0 if alone else 8) | number << 4)


class Reader:
    """The launcher's side of one rank's page.

    Parameters
    ----------
    rank : whose it is
    path : the file; it may not be there yet
    """

    def __init__(self, rank: int, path: Path) -> None:
        self.rank = rank
        self.lost = 0  # calls that were overwritten before they were read
        self._path = path
        self._map: mmap.mmap | None = None
        self._row = 0
        self._text_at = 0
        self._texts: list[str] = []
        self._groups: dict[int, Group] = {}

    def standing(self) -> Standing:
        """Where the rank is now. Read it before `calls`: what it names was posted before."""
        if not self._open():
            return Standing()
        assert self._map is not None
        posted, word = self._word(0), self._word(8)
        main, alone, number = Main(word & 7), not word & 8, word >> 4
        ops: tuple[int, ...] = ()
        if main is Main.JOINING:
            ops = struct.unpack_from(f"@{min(number, _JOINED)}q", self._map, _AT_JOIN)
            if self._word(8) != word:  # it moved meanwhile
                return Standing(posted=posted)
        elif main is not Main.RUNNING:
            ops = (number,)
        return Standing(main, ops, alone, posted)

    def calls(self) -> list[Call]:
        """What was posted since the last time, in order."""
        if not self._open():
            return []
        assert self._map is not None
        first, last = self._row, self._word(0)
        first = max(first, last - _ROWS)
        rows = []
        for number in range(first, last):
            at = _AT_ROWS + number % _ROWS * _ROW.size
            rows.append(_ROW.unpack_from(self._map, at))
        safe = self._word(0) - _ROWS + 1  # older rows may have been written over
        rows = [r for number, r in enumerate(rows, first) if number >= safe and r[0] == number]
        self.lost += last - self._row - len(rows)
        self._row = last
        self._read_texts()
        found = [self._call(row) for row in rows]
        return [call for call in found if call is not None]

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
        self._path = Path()  # it is not opened again

    def _call(self, row: tuple[int, ...]) -> Call | None:
        _, op, seq, count, size, whole, kind, name, group, peer, tag, dtype, reduction, where = row
        its = self._group(group)
        if its is None:
            self.lost += 1
            return None
        return Call(
            self.rank, op, KINDS[kind], self._told(name) or "", its, seq, peer, tag, count,
            size, self._told(dtype), self._told(reduction), self._told(where), whole,
        )  # fmt: skip

    def _group(self, number: int) -> Group | None:
        if number not in self._groups:
            words = self._told(number)
            if words is None:
                return None
            name, description, ranks = json.loads(words)
            self._groups[number] = Group(name, description, tuple(ranks))
        return self._groups[number]

    def _told(self, number: int) -> str | None:
        return self._texts[number] if 0 <= number < len(self._texts) else None

    def _read_texts(self) -> None:
        assert self._map is not None
        end = self._word(16)
        while self._text_at < end:
            at = _AT_TEXT + self._text_at
            (length,) = _LENGTH.unpack_from(self._map, at)
            at += _LENGTH.size
            self._texts.append(self._map[at : at + length].decode("utf-8", "replace"))
            self._text_at += _LENGTH.size + length

    def _word(self, at: int) -> int:
        assert self._map is not None
        return int(_WORD.unpack_from(self._map, at)[0])

    def _open(self) -> bool:
        if self._map is None:
            with contextlib.suppress(OSError, ValueError), self._path.open("rb") as file:
                found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                if len(found) == _SIZE:
                    self._map = found
                else:  # it is being made
                    found.close()
        return self._map is not None
