"""Name a stretch of the program, so that the timeline can say what a rank was doing.

``span`` does nothing outside a recording: deleting it is all it takes to lift a technique out of
this library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from labkit.trace.log import Log

_log: Log | None = None  # where this process writes, while it is recorded
_listeners: tuple[Callable[[str, Mapping[str, Any]], None], ...] = ()


def write_to(log: Log | None) -> Log | None:
    """Send the spans of this process to `log` (None: nowhere); returns where they went before."""
    global _log
    before, _log = _log, log
    return before


def current() -> Log | None:
    """The log of this process while it is recorded, else None."""
    return _log


@contextmanager
def at_span(call: Callable[[str, Mapping[str, Any]], None]) -> Iterator[None]:
    """Within it, ``call(name, tags)`` comes before each span opens, recorded or not."""
    global _listeners
    before = _listeners
    _listeners = (*before, call)
    try:
        yield
    finally:
        _listeners = before


class span:
    """``with span("forward", microbatch=3): …``: name and tag what happens inside.

    Parameters
    ----------
    name : what is done; ``step`` with a tag ``step=i`` marks training step i
    tags : numbers or words kept beside it
    """

    __slots__ = ("_log", "_name", "_tags")

    def __init__(self, name: str, **tags: Any) -> None:
        self._name = name
        self._tags = tags
        self._log: Log | None = None

    def __enter__(self) -> None:
        for call in _listeners:
            call(self._name, self._tags)
        self._log = _log
        if self._log is not None:
            self._log.open(self._name, self._tags)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._log is not None:
            self._log.close(self._name)
