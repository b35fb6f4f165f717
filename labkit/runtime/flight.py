"""What torch's own Flight Recorder says of a hang: the twin of the watchdog.

torch keeps a ring of the last collectives of every rank (TORCH_FR_BUFFER_SIZE of them), which on a
cluster is dumped when NCCL's watchdog times out. It works with gloo, too, but nobody dumps it
there: so here a thread of each rank does, while the main thread hangs. What it shows is what each
rank entered; who waits for whom one has to see oneself. With gloo, in torch 2.13, it has no
messages, and a collective goes from "scheduled" to "completed" without a word of having started.

Cost: a dump with stack traces takes seconds, the first time.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.runtime import travel
from labkit.runtime.calls import told_place
from labkit.runtime.launch import launch
from labkit.trace import tables

__all__ = ["Entry", "Flight", "record"]

_BUFFER = "TORCH_FR_BUFFER_SIZE"
_DUMP = 60.0  # seconds that dumping may take


@dataclass(frozen=True)
class Entry:
    """One collective of one rank, as torch has noted it.

    Attributes
    ----------
    rank, group : who, and the group's description ("default_pg": all ranks)
    seq : its number in the group, from 1
    operation : "gloo:all_reduce"
    state : "completed", or how far it got ("scheduled", "started")
    sizes : shapes of the inputs
    where : "file:line" of the learner's call; "" if there is none
    """

    rank: int
    group: str
    seq: int
    operation: str
    state: str
    sizes: tuple[tuple[int, ...], ...]
    where: str


@dataclass(frozen=True, repr=False)
class Flight:
    """The entries of all ranks, by rank and in order; shown as a table."""

    entries: tuple[Entry, ...]

    def _table(self) -> tables.Table:
        rows = [
            [f"rank {e.rank}", e.group, f"#{e.seq}", e.operation, e.state, told_place(e.where)]
            for e in self.entries
        ]
        head = ["rank", "group", "number", "operation", "state", "where"]
        return tables.Table("torch's Flight Recorder", head, rows, labels=len(head))

    def __repr__(self) -> str:
        return f"Flight({len(self.entries)} entries)"

    def __str__(self) -> str:
        return tables.plain(self._table())

    def _repr_html_(self) -> str:
        return tables.html(self._table())


def record(
    fn: Callable[..., Any], *args: Any, ranks: int | None = None, after: float = 1.0
) -> Flight:
    """Run ``fn(*args)`` on ranks, and take what torch's Flight Recorder has after a while.

    Parameters
    ----------
    fn, args, ranks : as `labkit.launch` takes them
    after : seconds that each rank gets; those that hang then are ended

    Raises
    ------
    ValueError : `after` is not a number of seconds above 0
    RankFailed … : the run failed before every rank had told
    """
    if not 0 < after < float("inf"):
        raise ValueError(f"after={after}: use a number of seconds above 0")
    with tempfile.TemporaryDirectory(prefix="labkit-flight-") as name:
        with _environment(_BUFFER, "2000"):
            options: dict[str, Any] = {"ranks": ranks, "backend": "gloo", "trace": False}
            run = launch(_flown, fn, args, name, after, wait=False, **options)
        paths = [Path(name) / f"{rank}" for rank in range(run.ranks)]
        until = time.monotonic() + after + _DUMP
        while not all(p.exists() for p in paths) and time.monotonic() < until and not run.poll():
            time.sleep(0.02)
        if not all(p.exists() for p in paths):
            run.wait() if run.poll() else run.stop()
        run.stop()
        return Flight(
            tuple(
                entry
                for rank, path in enumerate(paths)
                if path.exists()
                for entry in _entries(rank, pickle.loads(path.read_bytes()))
            )
        )


def _flown(fn: Callable[..., Any], args: tuple[Any, ...], folder: str, after: float) -> None:
    """On a rank: run the function, and write the dump after `after` seconds, or at its end."""
    import torch.distributed as dist

    from labkit.runtime.private import flight_recorder_dump

    path = Path(folder) / f"{dist.get_rank()}"
    lock = threading.Lock()

    def dump() -> None:
        with lock:
            if not path.exists():
                path.with_suffix(".part").write_bytes(flight_recorder_dump())
                path.with_suffix(".part").replace(path)

    timer = threading.Timer(after, dump)
    timer.daemon = True
    timer.start()
    fn(*args)
    timer.cancel()
    _settle(flight_recorder_dump)
    dump()
    # One that left would cut off those that hang. If another fails, the launcher ends this one.
    while not all((Path(folder) / f"{r}").exists() for r in range(dist.get_world_size())):
        time.sleep(0.02)


def _settle(dump: Callable[[], bytes]) -> None:
    """Give torch a moment to note that the last collective, which is over, is complete."""
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        if all(entry["retired"] for entry in pickle.loads(dump())["entries"]):
            return
        time.sleep(0.02)


def _entries(rank: int, dump: Mapping[str, Any]) -> Iterator[Entry]:
    for entry in dump["entries"]:
        yield Entry(
            rank, str(entry["process_group"][1]), int(entry["collective_seq_id"]),
            str(entry["profiling_name"]), "completed" if entry["retired"] else str(entry["state"]),
            tuple(tuple(shape) for shape in entry["input_sizes"]), _where(entry["frames"]),
        )  # fmt: skip


def _where(frames: list[Mapping[str, Any]]) -> str:
    for frame in frames:
        file = str(frame["filename"])
        if not file.startswith("<frozen") and not travel.is_installed(file):
            return f"{file}:{frame['line']}"
    return ""


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
