"""Two ways to start the ranks of a run, with one face.

On Linux a rank server forks them (`server`). Elsewhere each rank is a fresh interpreter: macOS must
not fork a process that has loaded torch, Windows cannot fork at all. Either way the launcher gets a
queue of what happens: lines that ranks print, and ends of ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

_LABKIT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Printed:
    """A line that a rank has printed (without its end)."""

    rank: int
    line: str


@dataclass(frozen=True)
class Ended:
    """A rank's process has ended: exit code, negative for a signal; when (perf_counter_ns)."""

    rank: int
    code: int
    stamp: int


Happening = Printed | Ended


class Ranks(Protocol):
    """The processes of one run."""

    pids: list[int]
    happenings: queue.Queue[Happening]

    def kill(self, ranks: list[int]) -> None: ...
    def close(self) -> None: ...
    def drained(self, timeout: float) -> None: ...


def start_ranks(ranks: int, folder: Path) -> Ranks:
    """Start `ranks` processes on the job in `folder`, with this process's environment and path."""
    message = {
        "folder": str(folder),
        "env": dict(os.environ),
        "cwd": str(Path.cwd()),
        "path": list(sys.path),
    }
    way = os.environ.get("LABKIT_START") or ("fork" if sys.platform == "linux" else "spawn")
    if way not in ("fork", "spawn"):
        raise ValueError(f"LABKIT_START={way!r}: use fork or spawn")
    return Forked(ranks, message) if way == "fork" else Spawned(ranks, message)


class _Pipes:
    """Reads what ranks write, each in a thread, and hands it on line by line."""

    def __init__(self, happenings: queue.Queue[Happening]) -> None:
        self._happenings = happenings
        self._threads: list[threading.Thread] = []

    def read(self, rank: int, fd: int) -> None:
        thread = threading.Thread(target=self._read, args=(rank, fd), daemon=True)
        thread.start()
        self._threads.append(thread)

    def _read(self, rank: int, fd: int) -> None:
        # A line that grows past a megabyte is passed on in pieces: a rank may print without end.
        with open(fd, encoding="utf-8", errors="replace", newline="") as pipe:
            while line := pipe.readline(1 << 20):
                text = line.rstrip("\r\n")
                self._happenings.put(Printed(rank, text.rsplit("\r", 1)[-1]))

    def drained(self, timeout: float) -> None:
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


class Forked:
    """Ranks forked by the rank server."""

    def __init__(self, ranks: int, message: dict[str, Any]) -> None:
        from labkit.runtime.server import receive, send

        self.happenings: queue.Queue[Happening] = queue.Queue()
        self._send = send
        self._server = rank_server()  # held: a server ends with the last run that uses it
        self._pipes = _Pipes(self.happenings)
        self._lock = threading.Lock()
        self._left: set[int] = set()
        self._socket, theirs = socket.socketpair()
        writers: list[int] = []
        readers: list[int] = []
        try:
            for _ in range(ranks):
                reader, writer = os.pipe()
                readers.append(reader)
                writers.append(writer)
            self._server.request(message, (theirs.fileno(), *writers))
            reply, _ = receive(self._socket)
            if reply is None:
                raise RuntimeError("the rank server ended before the ranks were up; run it again")
        except BaseException:  # an interrupt too: the server ends the ranks when this closes
            self.close()
            for fd in readers:
                os.close(fd)
            raise
        finally:
            theirs.close()
            for fd in writers:
                os.close(fd)
        self.pids: list[int] = reply["pids"]
        for rank, reader in enumerate(readers):
            self._pipes.read(rank, reader)
        self._left = set(range(ranks))
        threading.Thread(target=self._listen, args=(receive,), daemon=True).start()

    def _listen(self, receive: Any) -> None:
        while self._left:
            message, _ = receive(self._socket)
            if message is None:  # the server died; its ranks die with it
                for rank in sorted(self._left):
                    self.happenings.put(Ended(rank, -9, time.perf_counter_ns()))
                return
            self._left.discard(message["rank"])
            self.happenings.put(Ended(message["rank"], message["code"], message["stamp"]))

    def kill(self, ranks: list[int]) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._send(self._socket, {"kill": ranks})

    def close(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def drained(self, timeout: float) -> None:
        self._pipes.drained(timeout)


class Spawned:
    """Ranks as fresh interpreters."""

    def __init__(self, ranks: int, message: dict[str, Any]) -> None:
        self.happenings: queue.Queue[Happening] = queue.Queue()
        self._pipes = _Pipes(self.happenings)
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(ranks):
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "labkit.runtime.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )
            self._processes.append(process)
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # left open: the rank ends when it closes
                process.stdin.write(pickle.dumps({"message": message, "rank": rank}))
                process.stdin.flush()
            self._pipes.read(rank, os.dup(process.stdout.fileno()))
            process.stdout.close()
            threading.Thread(target=self._listen, args=(rank, process), daemon=True).start()
        self.pids = [p.pid for p in self._processes]
        atexit.register(self.close)

    def _listen(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        self.happenings.put(Ended(rank, code, time.perf_counter_ns()))

    def kill(self, ranks: list[int]) -> None:
        for rank in ranks:
            with contextlib.suppress(OSError):
                self._processes[rank].kill()

    def close(self) -> None:
        self.kill(list(range(len(self._processes))))
        atexit.unregister(self.close)

    def drained(self, timeout: float) -> None:
        self._pipes.drained(timeout)


class RankServer:
    """The kernel's handle of its rank server."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.sources = _sources()
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the server)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "labkit.runtime.server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(theirs.fileno(),),
                env=_environment(),
                start_new_session=True,
            )
        self._ready = False
        self._broken = False
        weakref.finalize(self, _close, self._socket, self.process, self._errors)

    def request(self, message: dict[str, Any], fds: tuple[int, ...]) -> None:
        from labkit.runtime.server import receive, send

        with self._lock:
            try:
                if not self._ready:
                    reply, _ = receive(self._socket)
                    if reply is None:
                        self.process.wait()
                        self._errors.seek(0)
                        told = self._errors.read().decode("utf-8", "replace").strip()
                        raise RuntimeError(f"the rank server could not start:\n{told}")
                    self._ready = True
                send(self._socket, message, fds)
            except BaseException:  # an interrupt may have cut a message in two
                self._broken = True
                raise

    def usable(self) -> bool:
        """Ours, alive, and made from the files as they are now."""
        return (
            not self._broken
            and self.owner == os.getpid()
            and self.process.poll() is None
            and self.sources == _sources()
        )


_server: RankServer | None = None
_server_lock = threading.Lock()


def rank_server() -> RankServer:
    """This process's rank server; started when there is none, or when labkit's files changed."""
    global _server
    with _server_lock:
        if _server is None or not _server.usable():
            _server = RankServer()
        return _server


def _close(channel: socket.socket, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    channel.close()
    errors.close()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    """This process's environment, in which a fresh interpreter finds this labkit."""
    path = [str(_LABKIT.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def _sources() -> tuple[int, int]:
    """Number and newest modification (ns) of labkit's Python files."""
    stamps = [p.stat().st_mtime_ns for p in _LABKIT.rglob("*.py")]
    return len(stamps), max(stamps)
