"""A run: its ranks while they live, and what is left of them afterwards.

A thread of its own starts the ranks, follows them (what they print, how they end) and decides how
the run ends; the cell's thread prints and waits. So an interrupt, which strikes the cell's thread
between any two instructions, takes effect at once and never leaves a start half done; `wait=False`
needs nothing more, and a widget may look at a `Run` from another thread.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import re
import signal
import sys
import threading
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from labkit.runtime import page, travel
from labkit.runtime.budget import Overrun
from labkit.runtime.failures import (
    LaunchError,
    OutOfMemory,
    RankFailed,
    TimedOut,
    place,
    ranks_in_words,
    shorten,
)
from labkit.runtime.faults import word_of
from labkit.runtime.pace import note
from labkit.runtime.start import Ended, Ranks, get_ready, start_ranks
from labkit.runtime.worker import Job, Outcome
from labkit.trace import About, Trace
from labkit.trace.log import RankRecord, merge

_STRAGGLERS = 0.3  # seconds in which an earlier failure may still be told
_ALIKE = 3.0  # … in which the other ranks may run out of memory too, as they do the same
_PRINTED = 200_000  # characters of a rank that reach the cell; all of it is in Run.output

# Errors that only say that another rank has gone.
_SECONDARY = re.compile(
    r"closed by peer|reset by peer|broken pipe|timed out|timeout|connection refused|"
    r"aborted operation|socket closed|remote process",
    re.IGNORECASE,
)


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

    begun: ClassVar[int] = (
        0  # runs that this process has started: a prediction asks whether it grew
    )

    def __init__(self, job: Job) -> None:
        self.ranks = ranks = job.ranks
        self.backend = job.backend
        self.pids: tuple[int, ...] = ()
        self.seconds: float | None = None
        self.budget = _budget(job.memory)
        self._job = job
        self._processes: Ranks | None = None  # until they are up
        self._folder: Path  # theirs
        self._refused: Exception | None = None  # why they did not start
        self._timeout = job.timeout
        self._traced = job.trace
        self._pace = job.pace
        self._lock = threading.RLock()
        self._lines: list[list[str]] = [[] for _ in range(ranks)]
        self._to_print: queue.Queue[tuple[int, str] | None] = queue.Queue()
        self._printed = [0] * ranks  # characters that were put there
        self._ended: dict[int, Ended] = {}
        self._killed: set[int] = set()  # ranks that were ended on purpose, by us
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
                    self._folder = processes.folder
                    self.pids = tuple(processes.pids)
                    if self._stopped:
                        self._end(list(range(self.ranks)))
                self._up.set()
                self._watch(processes, began + self._timeout)
        except Exception as error:  # the follower must never leave a cell waiting
            self._failure = LaunchError(f"labkit lost track of this run: {error!r}")
        finally:
            self.seconds = time.monotonic() - began
            if processes is not None:
                processes.close()
            self._to_print.put(None)
            self._done.set()
            self._up.set()

    def _watch(self, processes: Ranks, deadline: float) -> None:
        """Take what happens until all ranks have ended; end them when one fails or time is up."""
        failed_at = None
        while len(self._ended) < self.ranks:
            now = time.monotonic()
            if failed_at is None and self._has_failed():
                failed_at = now
            if failed_at is not None and now >= failed_at + self._time_for_stragglers():
                self._end([r for r in range(self.ranks) if r not in self._ended])
                deadline = failed_at = float("inf")
            if now >= deadline:
                self._failure = self._timed_out()
                self._end([r for r in range(self.ranks) if r not in self._ended])
                deadline = failed_at = float("inf")
            self._take(processes, min(0.05 if failed_at else 0.25, max(0.0, deadline - now)))
        until = time.monotonic() + 0.5
        while time.monotonic() < until and not processes.drained():
            self._take(processes, 0.01)
        while self._take(processes, 0):
            pass
        self._collect()
        if self._failure is None and not self._stopped:
            self._failure = self._first_failure()
        if self._failure is not None:
            self._failure.run = self

    def _take(self, processes: Ranks, timeout: float) -> bool:
        """Take in what has happened, some hundred things at most; False if there was nothing."""
        for i in range(500):
            try:
                happening = processes.happenings.get(block=i == 0, timeout=timeout)
            except queue.Empty:
                return i > 0
            if isinstance(happening, Ended):
                self._ended[happening.rank] = happening
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

    def _has_failed(self) -> bool:
        self._collect()
        return any(o.error for o in self._outcomes.values()) or any(
            rank not in self._outcomes for rank in self._ended
        )

    def _time_for_stragglers(self) -> float:
        short = any(o.overrun for o in self._outcomes.values())
        return _ALIKE if short else _STRAGGLERS

    def _collect(self) -> None:
        for rank in range(self.ranks):
            if rank in self._outcomes:
                continue
            path = self._folder / f"rank-{rank}.outcome"
            if path.exists():
                self._outcomes[rank] = pickle.loads(path.read_bytes())

    def _end(self, ranks: list[int]) -> None:
        self._killed.update(ranks)
        if self._processes is not None:
            self._processes.kill(ranks)

    def _first_failure(self) -> LaunchError | None:
        """The failure that the others follow from: see `_SECONDARY`; then by the ranks' stamps."""
        candidates: list[tuple[bool, int, int]] = []
        for rank in range(self.ranks):
            outcome = self._outcomes.get(rank)
            if outcome is None and rank not in self._killed and rank in self._ended:
                candidates.append((False, self._ended[rank].stamp, rank))
            elif outcome is not None and outcome.error is not None:
                secondary = bool(_SECONDARY.search(outcome.error.text))
                candidates.append((secondary, outcome.stamp, rank))
        if not candidates:
            missing = [r for r in range(self.ranks) if r not in self._outcomes]
            return RankFailed(f"rank {missing[0]} left no result", missing[0]) if missing else None
        _, _, rank = min(candidates)
        outcome = self._outcomes.get(rank)
        return self._raised(rank, outcome) if outcome else self._died(rank)

    def _raised(self, rank: int, outcome: Outcome) -> LaunchError:
        assert outcome.error is not None
        if outcome.overrun is not None:
            return self._out_of_memory(outcome.overrun)
        told = outcome.error.render()
        stage = {
            "unpack": " while it took its function and arguments apart",
            "join": " while it joined the group",
            "result": " when it handed back its result",
        }.get(outcome.stage, "")
        message = f"rank {rank} failed{stage}"
        early = [
            r for r, o in self._outcomes.items() if o.error is None and o.stamp < outcome.stamp
        ]
        if early and _SECONDARY.search(outcome.error.text):
            who = ranks_in_words(early)
            message += f" ({who} had finished by then, and could not take part any more)"
        if _SECONDARY.search(outcome.error.text):  # who is behind the others shows in their counts
            message += self._told_last_operations()
        return RankFailed(f"{message}\n\n{told.rstrip()}", rank, told)

    def _out_of_memory(self, first: Overrun) -> OutOfMemory:
        """Of ranks that failed alike the lowest is told, so that a run is told alike each time."""
        short = {r: o for r, o in sorted(self._outcomes.items()) if o.overrun is not None}
        for rank, outcome in short.items():
            overrun, error = outcome.overrun, outcome.error
            assert overrun is not None
            assert error is not None
            if (overrun.held.parts, overrun.when) == (first.held.parts, first.when):
                own = [i for i, f in enumerate(error.frames) if not travel.is_installed(f.file)]
                frames = error.frames[: own[-1] + 1 if own else 1]  # what torch calls says nothing
                text = f"labkit.OutOfMemory: {overrun.when}, on rank {rank}\n"
                held = tuple(o.overrun.held for o in short.values() if o.overrun is not None)
                return OutOfMemory(overrun, held, replace(error, frames=frames, text=text).render())
        raise AssertionError("one of them is the first")

    def _died(self, rank: int) -> RankFailed:
        code = self._ended[rank].code
        step = word_of(rank, self._folder)
        if step is not None:  # told alike each time, so without what the others were doing
            return RankFailed(f"rank {rank} was killed at step {step}, as the fault asked", rank)
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f"was killed by {signal.Signals(-code).name}"
            what = {-9: " (by hand, or because memory ran out)", -6: " (an abort inside C++)"}
            message = f"rank {rank} {how}{what.get(code, '')}"
            where = self._stack(rank)
            message += f", {where}" if where else ""
        else:
            message = f"rank {rank} ended its process with exit code {code} before it had a result"
        message += self._told_last_operations()
        said = self._lines[rank][-5:]
        if said:
            message += f"\nlast lines of rank {rank}:\n" + "\n".join(f"  {s}" for s in said)
        return RankFailed(message, rank)

    def _timed_out(self) -> TimedOut:
        doing = self._stacks()
        lines = []
        for rank in range(self.ranks):
            if rank in self._outcomes:
                lines.append(f"  rank {rank}: finished")
            elif rank in self._ended:
                lines.append(f"  rank {rank}: dead")
            else:
                lines.append(f"  rank {rank}: {doing.get(rank, 'running')}")
        message = (
            f"the run took longer than timeout={self._timeout:g} s. What each rank was doing:\n"
        )
        return TimedOut(message + "\n".join(lines) + self._told_last_operations())

    def _told_last_operations(self) -> str:
        lines = [f"\n  rank {r}: {text}" for r, text in self._last_operations().items()]
        return "\nlast operation of each rank:" + "".join(lines) if lines else ""

    def _last_operations(self) -> dict[int, str]:
        texts = {r: page.read(self._folder / f"rank-{r}.page") for r in range(self.ranks)}
        return {r: _with_places(text) for r, text in texts.items() if text}

    def _stacks(self) -> dict[int, str]:
        """Where each live rank is: a word for what it is in, and the learner's own line."""
        alive = [r for r in range(self.ranks) if r not in self._ended]
        if hasattr(signal, "SIGUSR1"):
            for rank in alive:
                with contextlib.suppress(OSError):
                    os.kill(self.pids[rank], signal.SIGUSR1)
        paths = {r: self._folder / f"rank-{r}.stack" for r in alive}
        until = time.monotonic() + 0.5
        while time.monotonic() < until and not all(_is_whole(p) for p in paths.values()):
            time.sleep(0.01)
        found = {r: self._stack(r) for r in alive}
        return {r: text for r, text in found.items() if text}

    def _stack(self, rank: int) -> str:
        """What a rank's main thread was doing when it last wrote its stack; "" if it never did."""
        path = self._folder / f"rank-{rank}.stack"
        with contextlib.suppress(OSError):
            thread = path.with_suffix(".thread").read_text()
            return _describe_stack(path.read_text("utf-8", "replace"), thread)
        return ""


class Finished(Run):
    """A run that ended before it was handed over: that of torchrun's world, seen by one rank."""

    def __init__(
        self,
        ranks: int,
        backend: str,
        results: list[bytes],
        records: list[RankRecord],
        about: About,
        seconds: float,
        memory: float | None = None,
    ) -> None:
        self.budget = _budget(memory)
        self.ranks = ranks
        self.backend = backend
        self.pids = ()
        self.seconds = seconds
        self._traced = bool(records)
        self._pace = None
        self._stopped = False
        self._failure = None
        self._lock = threading.RLock()
        self._lines = [[] for _ in range(ranks)]  # torchrun prints what ranks print
        self._done = threading.Event()
        self._done.set()
        self._outcomes = {
            r: Outcome(0, results[r], record=next((x for x in records if x.rank == r), None))
            for r in range(ranks)
        }

    def wait(self) -> Run:
        return self

    def stop(self) -> None:
        """It has ended."""

    def kill(self, rank: int) -> None:
        raise RuntimeError("this run has ended, and its ranks belong to torchrun")


def about_run(ranks: int, backend: str) -> About:
    """What is to be said of a recorded run on this machine."""
    return About(ranks=ranks, clock="measured", error=0.0, cores=cores(), backend=backend)


def cores() -> int:
    """Cores that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    count = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # a container's share, as on Binder
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    return count


def _is_whole(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


_STACK_LINE = re.compile(r'File "(.+)", line (\d+) in (.+)')


def _describe_stack(text: str, thread: str) -> str:
    """What the main thread of a faulthandler dump is doing, innermost frame first."""
    blocks = re.split(r"\n(?=Thread|Current thread)", text)
    block = next((b for b in blocks if re.match(rf"\S*\s*(thread )?0x0*{thread}\b", b, re.I)), None)
    frames = _STACK_LINE.findall(block or blocks[0])
    inside = ""
    for file, line, name in frames:
        if "/torch/distributed/" in file and not name.startswith("wrapper"):
            inside = name
        elif not file.startswith("<frozen ") and not travel.is_installed(file):
            where = place(file, int(line))
            return f"in {inside}, called at {where}" if inside else f"running at {where} ({name})"
        elif name == "_wait_for_threads":
            return "waiting for threads that its function has started"
    return f"in {inside}" if inside else ""


def _with_places(text: str) -> str:
    return re.sub(r"@(.+):(\d+)$", lambda m: "at " + place(m[1], int(m[2])), text)


def _budget(limit: float | None) -> int | None:
    return None if limit is None or limit == float("inf") else int(limit)
