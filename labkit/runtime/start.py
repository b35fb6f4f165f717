"""Two ways to start the ranks of a run, with one face.

On Linux a rank server forks them (`server`). Elsewhere each rank is a fresh interpreter: macOS must
not fork a process that has loaded torch, Windows cannot fork at all. Either way the launcher gets a
queue of what happens: lines that ranks print, and ends of ranks. The queue is short: a rank that
prints faster than the launcher takes in stands in its print, as at any pipe.

Every run has a folder of its own (0700), which holds its job and what its ranks say of themselves.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import pickle
import queue
import secrets
import shutil
import signal
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

from labkit.runtime.worker import Job

_LABKIT = Path(__file__).resolve().parent.parent
_QUEUE = 1000  # happenings that wait for the launcher


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
    folder: Path
    happenings: queue.Queue[Happening]

    def kill(self, ranks: list[int]) -> None: ...
    def close(self) -> None:
        """End all ranks, and remove the folder."""

    def drained(self) -> bool:
        """Whether all that the ranks have printed is in the queue."""


def get_ready() -> None:
    """Do what is needed once before ranks start: have a rank server that has imported torch."""
    if _way() == "fork":
        rank_server().get_ready()


def start_ranks(job: Job) -> Ranks:
    """Start the processes of `job`, with this process's environment, folder and path."""
    message = {
        "folder": str(Path(tempfile.gettempdir()).absolute() / f"labkit-{secrets.token_hex(8)}"),
        "env": dict(os.environ),
        "cwd": _working_folder(),
        "path": [p for p in sys.path if isinstance(p, str)],  # import looks at no others
    }
    return Forked(job, message) if _way() == "fork" else Spawned(job, message)


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed: Python cannot start there
        return os.sep


def _way() -> str:
    way = os.environ.get("LABKIT_START") or ("fork" if sys.platform == "linux" else "spawn")
    if way not in ("fork", "spawn"):
        raise ValueError(f"LABKIT_START={way!r}: use fork or spawn")
    return way


def _write_job(job: Job, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with (folder / "job").open("wb") as file:
        pickle.dump(job, file)


class _Pipes:
    """Reads what ranks write, each in a thread, and hands it on line by line."""

    def __init__(self, happenings: queue.Queue[Happening]) -> None:
        self._happenings = happenings
        self._threads: list[threading.Thread] = []
        self._closed = False

    def read(self, rank: int, fd: int) -> None:
        thread = threading.Thread(target=self._read, args=(rank, fd), daemon=True)
        thread.start()
        self._threads.append(thread)

    def _read(self, rank: int, fd: int) -> None:
        # A line that grows past a megabyte is passed on in pieces: a rank may print without end.
        with open(fd, encoding="utf-8", errors="replace", newline="") as pipe:
            # A progress bar's \r ends a line as well: its states arrive live, one below the other.
            while line := pipe.readline(1 << 20):
                self._put(Printed(rank, line.rstrip("\r\n")))

    def _put(self, printed: Printed) -> None:
        while not self._closed:
            try:
                self._happenings.put(printed, timeout=0.5)
            except queue.Full:
                continue
            break

    def drained(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        self._closed = True  # whoever still writes is read, and not heard


class Forked:
    """Ranks forked by the rank server."""

    def __init__(self, job: Job, message: dict[str, Any]) -> None:
        from labkit.runtime.server import receive, send

        self.happenings: queue.Queue[Happening] = queue.Queue(_QUEUE)
        self.folder = Path(message["folder"])
        self._send = send
        self._server = rank_server()  # held: a server ends with the last run that uses it
        self._pipes = _Pipes(self.happenings)
        self._lock = threading.Lock()
        self._left = set(range(job.ranks))
        self._socket, theirs = socket.socketpair()
        writers: list[int] = []
        readers: list[int] = []
        try:
            # The server knows the folder before it is there, and removes it if we are killed.
            self._server.request({"expect": message["folder"]})
            _write_job(job, self.folder)
            for _ in range(job.ranks):
                reader, writer = os.pipe()
                readers.append(reader)
                writers.append(writer)
            self._server.request(message, (theirs.fileno(), *writers))
            theirs.close()
            reply, _ = receive(self._socket)
            if reply is None:
                raise RuntimeError("the rank server ended before the ranks were up; run it again")
            if "error" in reply:
                raise RuntimeError(reply["error"])
            for rank in range(job.ranks):
                self._pipes.read(rank, readers[0])
                del readers[0]
            threading.Thread(target=self._listen, args=(receive,), daemon=True).start()
        except BaseException as error:  # the server ends the ranks when this closes
            self.close()
            for fd in readers:
                os.close(fd)
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                raise _too_many_files(job.ranks) from error
            raise
        finally:
            theirs.close()
            for fd in writers:
                os.close(fd)
        self.pids: list[int] = reply["pids"]

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
        self._pipes.close()
        with self._lock, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def drained(self) -> bool:
        return self._pipes.drained()


class Spawned:
    """Ranks as fresh interpreters."""

    def __init__(self, job: Job, message: dict[str, Any]) -> None:
        self.happenings: queue.Queue[Happening] = queue.Queue(_QUEUE)
        self.folder = Path(message["folder"])
        self._pipes = _Pipes(self.happenings)
        self._processes: list[subprocess.Popen[bytes]] = []
        atexit.register(self.close)
        try:
            _write_job(job, self.folder)
            for rank in range(job.ranks):
                self._start(rank, message)
        except BaseException:
            self.close()
            raise
        self.pids = [p.pid for p in self._processes]

    def _start(self, rank: int, message: dict[str, Any]) -> None:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "labkit.runtime.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(),
            cwd=_working_folder(),
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

    def _listen(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        _kill_group(process.pid)  # what it has left running
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        self.happenings.put(Ended(rank, code, time.perf_counter_ns()))

    def kill(self, ranks: list[int]) -> None:
        for rank in ranks:
            process = self._processes[rank]
            if process.returncode is None:
                _kill_group(process.pid)
                with contextlib.suppress(OSError):
                    process.kill()

    def close(self) -> None:
        self.kill(list(range(len(self._processes))))
        self._pipes.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)

    def drained(self) -> bool:
        return self._pipes.drained()


def _kill_group(pid: int) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


def _too_many_files(ranks: int) -> RuntimeError:
    return RuntimeError(
        f"{ranks} ranks need more open files than this process may have: use fewer ranks, or raise "
        "the limit (ulimit -n) before Python starts"
    )


class RankServer:
    """The kernel's handle of its rank server."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.sources = _sources()
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the server)
        module = [sys.executable, "-P", "-m", "labkit.runtime.server"]
        with theirs:
            self.process = subprocess.Popen(
                [*module, str(theirs.fileno()), str(self.owner)],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(theirs.fileno(),),
                env=_environment(),
                cwd=_working_folder(),
                start_new_session=True,
            )
        self._ready = False
        self._broken = False
        self.close = weakref.finalize(self, _close, self._socket, self.process, self._errors)
        self.close.atexit = False  # `_end_server` does more

    def get_ready(self) -> None:
        """Wait until it has imported what ranks need.

        Raises
        ------
        RuntimeError : it could not start; with what it said
        """
        from labkit.runtime.server import receive

        with self._lock:
            if self._ready:
                return
            reply, _ = receive(self._socket)
            if reply is None:
                self._broken = True
                self.process.wait()
                self._errors.seek(0)
                told = self._errors.read().decode("utf-8", "replace").strip()
                code = self.process.returncode
                raise RuntimeError(f"the rank server could not start (exit code {code}). {told}")
            self._ready = True

    def request(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        from labkit.runtime.server import send

        self.get_ready()
        with self._lock:
            try:
                send(self._socket, message, fds)
            except BaseException:  # a message may have been cut in two
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
        _ending[:] = [process for process in _ending if process.poll() is None]
        if _server is None or not _server.usable():
            _server = RankServer()
        return _server


_ending: list[subprocess.Popen[bytes]] = []  # servers that were told to end


def _close(channel: socket.socket, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    # Where this is called from is not known, so it must not wait; the server ends by itself.
    channel.close()
    errors.close()
    _ending.append(process)


@atexit.register
def _end_server() -> None:
    if _server is not None:
        _server.close()
    for process in _ending:
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
