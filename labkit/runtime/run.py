"""A run: its ranks while they live, and what is left of them afterwards.

A thread of its own starts the ranks, follows them (what they print, how they end) and decides how
the run ends; the cell's thread prints and waits. So an interrupt, which strikes the cell's thread
between any two instructions, takes effect at once and never leaves a start half done; `wait=False`
needs nothing more, and a widget may look at a `Run` from another thread.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import sys
import threading
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from labkit.runtime import travel, verdict
from labkit.runtime.about import about_run
from labkit.runtime.budget import finite
from labkit.runtime.failures import LaunchError, shorten
from labkit.runtime.pace import note
from labkit.runtime.start import Ended, Ranks, get_ready, start_ranks
from labkit.runtime.verdict import Facts
from labkit.runtime.watch import Watch
from labkit.runtime.worker import Job, Outcome
from labkit.trace import Trace
from labkit.trace.log import merge

_STRAGGLERS = 0.3  # seconds in which an earlier failure may still be told
_ALIKE = 3.0  # … in which the other ranks may run out of memory too, as they do the same
_LOOKS = 0.1  # seconds between two looks at the ranks' pages
_PRINTED = 200_000  # characters of a rank that reach the cell; all of it is in Run.output


class Run:
    """What `labkit.launch` returns.

    Attributes
    ----------
    ranks : number of ranks
    backend : "gloo", "nccl", …
    pids : process numbers by rank
    seconds : how long it took, once it has ended
    budget : bytes that a rank might hold; None: no limit
    """

    begun: ClassVar[int] = 0  # runs that this process has started: a prediction asks if it grew

    def __init__(self, job: Job, patience: float) -> None:
        self.ranks = ranks = job.ranks
        self.backend = job.backend
        self.pids: tuple[int, ...] = ()
        self.seconds: float | None = None
        self.budget = finite(job.memory)
        self._job = job
        self._processes: Ranks | None = None  # until they are up
        self._facts: Facts  # what is known of them
        self._patience = patience
        self._refused: Exception | None = None  # why they did not start
        self._timeout = job.timeout
        self._traced = job.trace
        self._pace = job.pace
        self._lock = threading.RLock()
        self._lines: list[list[str]] = [[] for _ in range(ranks)]
        self._to_print: queue.Queue[tuple[int, str] | None] = queue.Queue()
        self._printed = [0] * ranks  # characters that were put there
        self._stopped = False
        self._outcomes: dict[int, Outcome] = {}
        self._failure: LaunchError | None = None
        self._up = threading.Event()  # the ranks were started, or will never be
        self._done = threading.Event()

    def start(self) -> None:
        """Start the ranks, once; returns when their processes are there."""
        Run.begun += 1
        threading.Thread(target=self._follow, name="labkit run", daemon=True).start()
        while not self._up.wait(0.1):  # wakes up for an interrupt on Windows too
            pass
        if self._refused is not None:
            raise self._refused

    def __repr__(self) -> str:
        return f"Run(ranks={self.ranks}, {self.backend}, {self.state})"

    @property
    def state(self) -> str:
        """How it stands: running, finished, failed or stopped."""
        if not self._done.is_set():
            return "running"
        if self._stopped:
            return "stopped"
        return "failed" if self._failure else "finished"

    # While it runs

    def poll(self) -> bool:
        """Whether the run has ended."""
        return self._done.is_set()

    def wait(self) -> Run:
        """Print what the ranks print until the run has ended.

        Raises
        ------
        RankFailed, TimedOut, Deadlock, Mismatch, OutOfMemory : how the run failed
        KeyboardInterrupt : the cell was interrupted; all ranks are gone by then
        """
        try:
            while (item := self._next_line()) is not None:
                rank, line = item
                sys.stdout.write(f"[rank {rank}] {line}\n")
            self._done.wait()
        except BaseException as error:  # an interrupt, or a cell whose output is closed
            self.stop()
            if isinstance(error, KeyboardInterrupt):
                shorten(error)
            raise
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
        if self._failure is not None:
            raise self._failure
        return self

    def stop(self) -> None:
        """End all ranks now."""
        with self._lock:
            if not self._done.is_set():
                self._stopped = True
                self._end(list(range(self.ranks)))
        # A server that still imports torch cannot be hurried; its ranks will not be started.
        self._done.wait(5 if self._up.is_set() else 0.5)

    def kill(self, rank: int) -> None:
        """End one rank (SIGKILL), as a failing machine would.

        Raises
        ------
        ValueError : there is no such rank
        """
        if not 0 <= rank < self.ranks:
            raise ValueError(f"rank {rank}: this run has ranks 0 to {self.ranks - 1}")
        if self._processes is not None:
            self._processes.kill([rank])

    # Afterwards

    @property
    def results(self) -> list[Any]:
        """What the function returned, by rank (waits for the end).

        Raises
        ------
        RankFailed … : as `wait`
        """
        self._need_end()
        return self._results

    @cached_property
    def _results(self) -> list[Any]:
        values = []
        for rank in range(self.ranks):
            try:
                values.append(travel.unpack(self._outcomes[rank].result or b""))
            except Exception as error:
                raise TypeError(
                    f"the result of rank {rank} cannot be unpacked here: "
                    f"{type(error).__name__}: {error}"
                ) from error
        return values

    @property
    def output(self) -> list[str]:
        """What each rank has printed so far, by rank."""
        with self._lock:
            return ["".join(f"{line}\n" for line in lines) for lines in self._lines]

    @property
    def trace(self) -> Trace:
        """What the ranks did (waits for the end). Ranks that died left nothing.

        Raises
        ------
        ValueError : the run was launched with ``trace=False``
        """
        if not self._traced:
            raise ValueError("this run was not recorded: launch it with trace=True")
        self._done.wait()
        return self._trace

    @cached_property
    def _trace(self) -> Trace:
        records = [o.record for o in self._outcomes.values() if o.record is not None]
        about = about_run(self.ranks, self.backend)
        if self._pace is not None:
            paced = [o.paced for o in self._outcomes.values() if o.paced is not None]
            about = replace(about, clock="paced", note=note(self._pace, paced))
        return merge(records, about)

    def timeline(self, **options: Any) -> Any:
        """Draw what the ranks did (`labkit.widgets.Timeline`)."""
        return self.trace.timeline(**options)

    def _need_end(self) -> None:
        if not self._done.is_set() or self._failure is not None:
            self.wait()
        if self._stopped:
            raise RuntimeError("this run was stopped: its ranks left no results")

    def _next_line(self) -> tuple[int, str] | None:
        while True:
            try:
                return self._to_print.get(timeout=0.1)  # wakes up for an interrupt on Windows too
            except queue.Empty:
                if self._done.is_set() and self._to_print.empty():
                    return None

    # The following thread

    def _follow(self) -> None:
        began = time.monotonic()
        processes = None
        try:
            get_ready()
            with self._lock:
                wanted = not self._stopped
            if wanted:
                processes = start_ranks(self._job)
        except Exception as error:
            self._refused = error
        try:
            if processes is not None:
                began = time.monotonic()
                with self._lock:
                    self._processes = processes
                    self.pids = tuple(processes.pids)
                    self._facts = self._first_facts(processes.folder)
                    if self._stopped:
                        self._end(list(range(self.ranks)))
                self._up.set()
                self._watch(processes, began + self._timeout)
        except Exception as error:  # the follower must never leave a cell waiting
            self._failure = LaunchError(f"labkit lost track of this run: {error!r}")
        finally:
            self.seconds = time.monotonic() - began
            if processes is not None:
                if self._facts.watch is not None:
                    self._facts.watch.close()
                processes.close()
            self._to_print.put(None)
            self._done.set()
            self._up.set()

    def _first_facts(self, folder: Path) -> Facts:
        watch = Watch(self.ranks, folder, self._patience) if self._traced else None
        return Facts(self.ranks, folder, self.pids, self._lines, watch, self._outcomes)

    def _watch(self, processes: Ranks, deadline: float) -> None:
        """Take what happens until all ranks have ended; end them when one fails or time is up."""
        facts, never = self._facts, float("inf")
        failed_at, look_at = never, 0.0
        while len(facts.ended) < self.ranks:
            now = time.monotonic()
            self._collect()
            if now >= look_at and self._failure is None:
                self._failure = self._look(now)
                look_at = now + _LOOKS
            if self._failure is None and now >= deadline:
                self._failure = verdict.timed_out(facts, self._timeout)
            if failed_at == never and facts.failed():
                failed_at = now
            if self._failure is not None or now >= failed_at + self._time_for_stragglers():
                self._end([r for r in range(self.ranks) if r not in facts.ended])
                break
            self._take(processes, max(0.0, min(0.05, deadline - now)))
        while len(facts.ended) < self.ranks:
            self._take(processes, 0.25)
        until = time.monotonic() + 0.5
        while time.monotonic() < until and not processes.drained():
            self._take(processes, 0.01)
        while self._take(processes, 0):
            pass
        self._collect()
        if self._failure is None and not self._stopped:
            if facts.watch is not None:
                facts.watch.look()
            self._failure = verdict.first_failure(facts)
        if self._failure is not None:
            self._failure.run = self

    def _look(self, now: float) -> LaunchError | None:
        """What the ranks' pages tell: calls that do not fit, or ranks that can never go on."""
        facts, watch = self._facts, self._facts.watch
        if watch is None or self._stopped:
            return None
        watch.look()
        if watch.clash is not None and watch.certain:
            return verdict.mismatch(watch.clash)
        if facts.failed():  # what the others then wait for will soon be told
            return None
        waits = watch.deadlock(frozenset(facts.finished), now)
        return verdict.deadlock(facts, waits, watch.patience) if waits else None

    def _take(self, processes: Ranks, timeout: float) -> bool:
        """Take in what has happened, some hundred things at most; False if there was nothing."""
        for i in range(500):
            try:
                happening = processes.happenings.get(block=i == 0, timeout=timeout)
            except queue.Empty:
                return i > 0
            if isinstance(happening, Ended):
                self._facts.ended[happening.rank] = happening
            else:
                self._take_line(happening.rank, happening.line)
        return True

    def _take_line(self, rank: int, line: str) -> None:
        with self._lock:
            self._lines[rank].append(line)
        before = self._printed[rank]
        self._printed[rank] += len(line) + 1
        if self._printed[rank] <= _PRINTED:
            self._to_print.put((rank, line))
        elif before <= _PRINTED:
            self._to_print.put((rank, f"… more in run.output[{rank}]"))

    def _time_for_stragglers(self) -> float:
        short = any(o.overrun for o in self._outcomes.values())
        return _ALIKE if short else _STRAGGLERS

    def _collect(self) -> None:
        for rank in range(self.ranks):
            if rank in self._outcomes:
                continue
            path = self._facts.folder / f"rank-{rank}.outcome"
            if path.exists():
                self._outcomes[rank] = pickle.loads(path.read_bytes())

    def _end(self, ranks: list[int]) -> None:
        if self._processes is not None:
            self._facts.killed.update(ranks)
            self._processes.kill(ranks)
