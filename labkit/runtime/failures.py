"""How a run goes wrong, told so that a learner can act on it.

An exception cannot leave its process as it is: it may not pickle, and the source lines of a cell
exist only in the kernel. So a rank sends its error as plain data (`Told`): names, words and
places; the kernel adds the source lines.
"""

from __future__ import annotations

import itertools
import linecache
import sys
import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.runtime.budget import Overrun
    from labkit.runtime.run import Run
    from labkit.trace.memory import Held

_LABKIT = str(Path(__file__).resolve().parent.parent)
_SAME = 3  # lines of a recursion that are shown


class LaunchError(RuntimeError):
    """A run that did not end well. `run` holds what is known of it: output, trace, results."""

    run: Run | None = None

    def __reduce__(self) -> Any:
        # It may be raised in a process of the caller's own; a run cannot leave its process.
        return _remake, (type(self), self.args, {**self.__dict__, "run": None})

    def _render_traceback_(self) -> list[str]:
        # IPython shows these lines in place of the launcher's own frames, which help nobody.
        return [f"{type(self).__name__}: {self}"]


class RankFailed(LaunchError):
    """A rank raised, or its process died. `rank` is the one that failed first.

    Attributes
    ----------
    rank : its number
    traceback : the traceback of that rank, with source lines; "" if it left none
    """

    def __init__(self, message: str, rank: int, traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.traceback = traceback


class TimedOut(LaunchError):
    """The run took longer than its `timeout`; the message says what each rank was doing."""


class Deadlock(LaunchError):
    """A set of ranks waits only for ranks of the set, or for finished or dead ones."""


class Mismatch(LaunchError):
    """Ranks entered the same collective with another kind, reduction, dtype or size."""


class OutOfMemory(LaunchError):
    """A rank holds more than the run's memory budget allows.

    It is raised in the rank's own forward, backward or optimizer step, where it can be caught;
    uncaught it ends the run.

    Attributes
    ----------
    rank : the rank that is told
    budget : bytes that each rank may hold
    held : what the ranks held that failed so, by rank
    traceback : that rank's traceback, with source lines
    """

    def __init__(self, overrun: Overrun, held: tuple[Held, ...] = (), traceback: str = "") -> None:
        self.overrun = overrun
        self.rank, self.budget = overrun.held.rank, overrun.budget
        self.held = held or (overrun.held,)
        self.traceback = traceback
        parts = [str(overrun), _others(overrun.held, self.held), f"\n{traceback.rstrip()}"]
        super().__init__("\n".join(part for part in parts if part.strip()))

    @property
    def parts(self) -> dict[str, int]:
        """Bytes of the told rank, by part."""
        return self.overrun.held.parts


def _others(told: Held, held: tuple[Held, ...]) -> str:
    """The other ranks that are over the budget, in a line."""
    others = [h for h in held if h.rank != told.rank]
    if not others:
        return ""
    alike = [h.rank for h in others if h.parts == told.parts]
    if len(alike) == len(others):
        return f"{ranks_in_words(alike)} failed with the same bytes"
    each = ", ".join(f"rank {h.rank} with {h.total:,} B" for h in others)
    return f"also over the budget: {each}"


def ranks_in_words(ranks: list[int]) -> str:
    """``rank 1``, ``ranks 1, 2, 3``."""
    words = ", ".join(map(str, ranks))
    return f"rank {words}" if len(ranks) == 1 else f"ranks {words}"


def shorten(interrupt: KeyboardInterrupt) -> None:
    """Let IPython show an interrupted launch in a line, not in the launcher's own frames."""
    words = "KeyboardInterrupt: the run was interrupted, and its ranks were stopped"
    interrupt._render_traceback_ = lambda: [words]  # type: ignore[attr-defined]


def _remake(kind: type[LaunchError], args: tuple[Any, ...], state: dict[str, Any]) -> LaunchError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


@dataclass(frozen=True)
class Frame:
    """One line of a traceback, without the source text."""

    file: str
    line: int
    name: str


@dataclass(frozen=True)
class Told:
    """An exception as plain data, with what it came from."""

    kind: str
    text: str  # as Python prints it under a traceback
    frames: tuple[Frame, ...]
    before: Told | None = None
    direct: bool = False  # "the direct cause", not "during handling"
    parts: tuple[Told, ...] = ()  # of an exception group

    def render(self) -> str:
        """The traceback as Python would print it, with this process's source lines."""
        head = ""
        if self.before is not None:
            link = (
                "The above exception was the direct cause of the following exception:"
                if self.direct
                else "During handling of the above exception, another exception occurred:"
            )
            head = f"{self.before.render()}\n{link}\n\n"
        lines = ["Traceback (most recent call last):\n"] if self.frames else []
        after: list[str] = []
        for frame, same in itertools.groupby(self.frames):
            once = f"  {place(frame.file, frame.line)}, in {frame.name}\n"
            source = linecache.getline(frame.file, frame.line).strip()
            if source:
                once += f"    {source}\n"
            count = len(list(same))
            lines.append(once * min(count, _SAME))
            if count > _SAME:
                lines.append(f"  [{count - _SAME} more of the same line]\n")
        for number, part in enumerate(self.parts, 1):
            told = f"{number} of {len(self.parts)}: {part.render().rstrip()}"
            after.append(textwrap.indent(told, "  | ") + "\n")
        return head + "".join(lines) + self.text + "".join(after)


def tell(error: BaseException, depth: int = 8) -> Told:
    """`error` as data, without the frames of the launcher and the recorder."""
    frames = [
        Frame(f.filename, f.lineno or 0, f.name)
        for f in _frames(error.__traceback__)
        if not _is_ours(f.filename)
    ]
    parts = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return Told(
        kind=type(error).__name__,
        text="".join(traceback.format_exception_only(error)),
        frames=tuple(frames),
        before=tell(before, depth - 1) if before is not None and depth > 0 else None,
        direct=error.__cause__ is not None,
        parts=tuple(tell(part, depth - 1) for part in parts) if depth > 0 else (),
    )


def place(file: str, line: int) -> str:
    """Where something stands, as a learner knows it: a cell by its number, a file by its path."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    names = getattr(getattr(shell, "compile", None), "_filename_map", {})
    if file in names:
        return f"cell [{names[file]}], line {line}"
    return f'File "{file}", line {line}'


def _frames(trace: TracebackType | None) -> traceback.StackSummary:
    return traceback.StackSummary.extract(traceback.walk_tb(trace), lookup_lines=False)


def _is_ours(file: str) -> bool:
    return file.startswith((f"{_LABKIT}/runtime/", f"{_LABKIT}\\runtime\\"))
