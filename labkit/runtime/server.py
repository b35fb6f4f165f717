"""The rank server: a process that has imported torch and forks a rank whenever it is asked to.

A kernel must not fork itself (its OpenMP threads would be missing in the child, and one that has
used CUDA cannot be forked at all), and a fresh interpreter needs seconds to import torch. So one
helper process imports everything once, stays single-threaded, and forks: a rank is up in about
20 ms.

Nothing is left behind. The server holds one end of a socket whose other end only the kernel has:
when that closes, however the kernel died, every rank is killed, with what it had started itself.
Ranks die with the server (PR_SET_PDEATHSIG). Protocol: a message is a length and JSON, with file
descriptors riding along; a run has a socket of its own, on which it hears of its ranks' ends.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What a rank may need at once; then, while the server is idle, what torch's own techniques need.
FIRST = (
    "cloudpickle",
    "numpy.random",
    "torch",
    "torch.distributed",
    "labkit.runtime.worker",
    "labkit.runtime.recorder",
)
LATER = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "torch.distributed.optim",
)
MOST_RANKS = 250  # file descriptors that fit one message on Linux, less the run's own

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass
class _Run:
    folder: str
    socket: socket.socket
    ranks: dict[int, int] = field(default_factory=dict)  # pid -> rank


def send(channel: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Send one message; `fds` are duplicated into the receiver."""
    data = json.dumps(message).encode()
    head = len(data).to_bytes(8, "little")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    channel.sendmsg([head], rights)
    channel.sendall(data)


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and its file descriptors; None once the other end is closed."""
    fds: array.array[int] = array.array("i")
    try:
        head, rights, _, _ = channel.recvmsg(8, socket.CMSG_SPACE((MOST_RANKS + 1) * 4))
        for _, _, data in rights:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        body = _exactly(channel, int.from_bytes(head, "little")) if len(head) == 8 else b""
    except OSError:
        body = b""
    return (json.loads(body) if body else None), list(fds)


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = channel.recv(size - len(data))
        if not piece:
            return b""
        data += piece
    return data


class Server:
    """The loop: new runs from the kernel, ends of ranks, runs that were closed."""

    def __init__(self, kernel: socket.socket, parent: int) -> None:
        self.kernel = kernel
        self.parent = parent
        self.runs: list[_Run] = []
        self.folders: set[str] = set()  # those of runs, there or soon to be
        self.later = list(LATER)
        self.wake, self._wake_in = os.pipe()
        for fd in (self.wake, self._wake_in):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self.end())

    def serve(self) -> None:
        send(self.kernel, {"ready": os.getpid()})
        while True:
            sockets: list[Any] = [self.kernel, *(r.socket for r in self.runs)]
            busy = bool(self.runs) or not self.later
            ready, _, _ = select.select([*sockets, self.wake], [], [], 0.5 if busy else 0.02)
            if self.wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake, 4096)
            self.reap()
            for run in [r for r in self.runs if r.socket in ready]:
                self.hear(run)
            if self.kernel in ready:  # first what a dead kernel has still said
                self.start()
            elif os.getppid() != self.parent:  # a forked copy of it may hold the socket yet
                self.end()
            elif not ready and not busy:
                importlib.import_module(self.later.pop(0))
                _settle()

    def start(self) -> None:
        """Fork the ranks of one run, or note the folder of one that will soon come."""
        message, fds = receive(self.kernel)
        if message is None:
            self.end()
        assert message is not None
        if "expect" in message:
            self.folders.add(message["expect"])
            return
        run = _Run(message["folder"], socket.socket(fileno=fds[0]))
        pids: list[int] = []
        try:
            for rank, output in enumerate(fds[1:]):
                pid = os.fork()
                if pid == 0:
                    self.become(rank, run, output, fds, message)
                run.ranks[pid] = rank
                pids.append(pid)
            self.tell(run, {"pids": pids})
        except OSError as error:  # the launcher closes the run, which ends those that are up
            why = f"rank {len(pids)} could not be started: {error}. Use fewer ranks, or end others."
            self.tell(run, {"error": why})
        finally:
            for fd in fds[1:]:
                os.close(fd)
        self.runs.append(run)

    def become(
        self, rank: int, run: _Run, output: int, fds: list[int], message: dict[str, Any]
    ) -> None:
        """In the fork: drop what belongs to the server and turn into a rank. Never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _die_with(os.getppid())
            os.setsid()  # a group of its own, so that what it starts can be killed with it
            os.dup2(output, 1)
            os.dup2(output, 2)
            for other in [r.socket.fileno() for r in self.runs]:
                os.close(other)
            for fd in (*fds, self.kernel.fileno(), self.wake, self._wake_in):
                os.close(fd)
            from labkit.runtime import worker

            code = worker.rank_process(message, rank)
        except BaseException as error:
            print(f"labkit: rank {rank} could not start: {error!r}", file=sys.stderr)
        finally:
            os._exit(code)

    def hear(self, run: _Run) -> None:
        """The launcher asks for a rank's end, or has closed the run."""
        message, _ = receive(run.socket)
        for pid, rank in list(run.ranks.items()):
            if message is None or rank in message.get("kill", ()):
                _kill(pid)
        if message is None:
            run.socket.close()
            self.runs.remove(run)
            shutil.rmtree(run.folder, ignore_errors=True)
            self.folders.discard(run.folder)
            self.reap()

    def reap(self) -> None:
        """Note the ranks that have ended; kill what they have left running."""
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                break
            with contextlib.suppress(OSError):
                os.killpg(seen.si_pid, signal.SIGKILL)  # before the number can be used again
            _, status = os.waitpid(seen.si_pid, 0)
            for run in self.runs:
                rank = run.ranks.pop(seen.si_pid, None)
                if rank is not None:
                    code = os.waitstatus_to_exitcode(status)
                    self.tell(run, {"rank": rank, "code": code, "stamp": time.perf_counter_ns()})
        self.sweep()  # at every end: an orphan that died leaves us its own

    def sweep(self) -> None:
        """Kill adopted orphans: processes that a rank started in a session of their own."""
        if not any(run.ranks for run in self.runs):  # else it may be a living rank's
            for pid in _children():
                _kill(pid)

    def tell(self, run: _Run, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the launcher has gone: its socket says so next
            send(run.socket, message)

    def end(self) -> None:
        """The kernel is gone: kill every rank, remove every folder, and go."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(ChildProcessError):
            while True:  # what those had started is adopted when they have gone
                for pid in _children():
                    _kill(pid)
                os.wait()
        for folder in self.folders:  # a rank may have written its outcome meanwhile
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)


def _children() -> list[int]:
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        return [int(pid) for pid in text.split()]
    except OSError:
        return []


def _die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent ends."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _settle() -> None:
    """Move all that is alive out of the collector's reach: forks then share it, uncopied."""
    gc.collect()
    gc.freeze()


def main() -> None:
    kernel = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for name in FIRST:
        importlib.import_module(name)
    _settle()
    Server(kernel, parent=int(sys.argv[2])).serve()


if __name__ == "__main__":
    # The loop must live in the imported module: a rank's `__main__` is the learner's.
    importlib.import_module("labkit.runtime.server").main()
