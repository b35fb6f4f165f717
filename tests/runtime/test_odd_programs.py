"""Programs like those of learners, and worse: told clearly, and nothing is left behind."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

import labkit

pytestmark = pytest.mark.usefixtures("no_process_left")


def go(fn: Callable[..., Any], *args: Any, **options: Any) -> labkit.Run:
    given: dict[str, Any] = {"ranks": 2, "threads": 1, "backend": "gloo", "timeout": 30} | options
    return labkit.launch(fn, *args, **given)


def fail(fn: Callable[..., Any], **options: Any) -> labkit.RankFailed:
    with pytest.raises(labkit.RankFailed) as caught:
        go(fn, **options)
    return caught.value


# What is launched


def test_a_decorator_may_give_arguments_of_its_own() -> None:
    def with_rate(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapper(*args: Any) -> Any:
            return fn(0.1, *args)

        return wrapper

    @with_rate
    def work(rate: float, x: int) -> float:
        return rate * x

    assert go(work, 20).results == [2.0, 2.0]


def test_a_generator_function_is_told_at_once() -> None:
    def work() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="work has a yield"):
        go(work)


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[types.ModuleType]:
    """A module that sys.path does not lead to."""
    file = tmp_path / "stranger_odd.py"
    file.write_text("K = 4\nclass C:\n    def m(self):\n        return K\ndef f():\n    return K\n")
    spec = importlib.util.spec_from_file_location("stranger_odd", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stranger_odd"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["stranger_odd"]


def test_what_ranks_could_not_import_travels_wherever_it_is_used(stranger: Any) -> None:
    f, kind = stranger.f, stranger.C
    for fn in (f, functools.partial(f), kind().m, lambda: f(), lambda: kind().m()):
        assert go(fn).results == [4, 4]
    assert go(lambda x: x.m(), kind()).results == [4, 4]


def test_ranks_run_the_file_that_was_imported_not_its_namesake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "twin_odd.py").write_text(f"def f():\n    return {name!r}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "a"))
    twin = importlib.import_module("twin_odd")
    monkeypatch.syspath_prepend(str(tmp_path / "b"))
    assert go(twin.f).results == ["a", "a"]


# Where from


def test_a_path_object_in_the_search_path_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/tmp")])
    assert go(dist.get_rank).results == [0, 1]


def test_a_working_folder_that_was_removed_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert go(dist.get_rank).results == [0, 1]
    os.chdir(tmp_path)  # for monkeypatch, which wants to know where it is


def test_torchs_debug_level_is_that_of_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    go(dist.get_rank)  # the server is there, and has read another one
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "INFO")
    assert go(lambda: dist.get_debug_level().name).results == ["INFO", "INFO"]


def test_too_few_open_files_are_told() -> None:
    code = """
        import resource, labkit
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        labkit.launch(int, ranks=60, backend="gloo")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert "60 ranks need more open files than this process may have" in done.stderr


@pytest.mark.parametrize(
    ("rank", "world"), [("0", "two"), ("", "2"), ("-1", "2")], ids=["world", "empty", "negative"]
)
def test_a_world_that_is_no_number_is_named(
    rank: str, world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(ValueError, match=r"(RANK|WORLD_SIZE)='.*': torchrun sets a number"):
        go(dist.get_rank)


# How it goes wrong


def test_a_group_of_errors_is_told_with_its_parts() -> None:
    def work() -> None:
        raise ExceptionGroup("both", [ValueError("first"), KeyError("second")])

    told = fail(work).traceback
    assert "1 of 2: ValueError: first" in told
    assert "2 of 2: KeyError: 'second'" in told


def test_a_recursion_is_told_shortly() -> None:
    def deeper(n: int) -> int:
        return deeper(n + 1)

    told = fail(lambda: deeper(0)).traceback
    assert "more of the same line]" in told
    assert told.count("return deeper(n + 1)") == 3
    assert len(told) < 2000


def test_a_segmentation_fault_is_told_with_its_line() -> None:
    def work() -> None:
        if dist.get_rank() == 1:
            ctypes.string_at(0)
        dist.barrier()

    assert "rank 1 was killed by SIGSEGV, running at" in str(error := fail(work))
    assert f'test_odd_programs.py", line {work.__code__.co_firstlineno + 2} (work)' in str(error)


def test_a_timeout_names_the_learners_line_not_pythons_own() -> None:
    def work() -> None:
        threading.Event().wait()

    with pytest.raises(labkit.TimedOut, match=r"test_odd_programs.py\", line \d+ \(work\)"):
        go(work, timeout=1)


def test_a_thread_that_never_ends_is_told() -> None:
    def work() -> None:
        threading.Thread(target=time.sleep, args=(60,)).start()

    with pytest.raises(labkit.TimedOut, match="rank 0: waiting for threads that its function"):
        go(work, timeout=1)


def test_a_failure_can_be_pickled() -> None:
    error = fail(lambda: 1 / 0)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.rank, copy.traceback) == (str(error), error.rank, error.traceback)


def test_no_room_for_the_result_is_told() -> None:
    def work() -> torch.Tensor:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        return torch.zeros(10_000)

    assert "File too large" in fail(work, trace=False).traceback


@pytest.mark.parametrize("trace", [True, False], ids=["recorded", "plain"])
def test_an_error_in_gloos_thread_is_torchs_own(trace: bool) -> None:
    def work() -> None:
        dist.all_reduce(torch.ones(2, dtype=torch.int32), op=dist.ReduceOp.AVG)

    assert "RuntimeError: result type Float can't be cast" in fail(work, trace=trace).traceback


# How it ends


def test_a_fork_that_comes_back_is_no_rank() -> None:
    def work() -> str:
        pid = os.fork()
        if pid == 0:
            return "child"
        os.waitpid(pid, 0)
        return "parent"

    assert go(work).results == ["parent", "parent"]


def test_a_thread_pool_that_was_left_open_ends_with_its_rank() -> None:
    kept: list[ThreadPoolExecutor] = []

    def work() -> int:
        kept.append(ThreadPoolExecutor(1))
        return kept[0].submit(abs, -3).result()

    assert go(work).results == [3, 3]


def test_what_runs_at_exit_runs_and_is_heard() -> None:
    def work() -> str:
        import atexit

        work.folder = tempfile.TemporaryDirectory()  # type: ignore[attr-defined]
        atexit.register(print, "bye")
        sys.__stdout__.write("around sys.stdout\n")  # type: ignore[union-attr]
        ctypes.CDLL(None).puts(b"from C")
        return str(work.folder.name)  # type: ignore[attr-defined]

    run = go(work, ranks=1)
    assert sorted(run.output[0].splitlines()) == ["around sys.stdout", "bye", "from C"]
    assert not Path(run.results[0]).exists()


def test_orphans_of_orphans_end_with_the_run(tmp_path: Path) -> None:
    def work(pids: str) -> None:
        inner = f"setsid sh -c 'echo $$ >> {pids}; sleep 300' & echo $$ >> {pids}; sleep 300"
        subprocess.Popen(["setsid", "sh", "-c", inner])
        while len(Path(pids).read_text().split() if Path(pids).exists() else ()) < 2:
            time.sleep(0.01)

    file = tmp_path / "pids"
    go(work, str(file), ranks=1)
    pids = [int(p) for p in file.read_text().split()]
    until = time.monotonic() + 5
    while time.monotonic() < until and any(psutil.pid_exists(p) for p in pids):
        time.sleep(0.05)
    assert not any(psutil.pid_exists(p) for p in pids)


def test_a_flood_of_output_is_stopped_at_once_and_does_not_pile_up() -> None:
    def work() -> None:
        while True:
            print("z" * 100)

    run = go(work, wait=False)
    time.sleep(1)
    began = time.monotonic()
    run.stop()
    assert run.state == "stopped"
    assert time.monotonic() - began < 2


def test_a_handle_that_is_dropped_is_not_kept() -> None:
    def work() -> int:
        import gc
        import weakref

        handles = [weakref.ref(dist.all_reduce(torch.ones(2), async_op=True)) for _ in range(9)]
        dist.barrier()
        gc.collect()
        return sum(handle() is not None for handle in handles)

    assert go(work).results == [0, 0]


def test_collectives_are_counted_on_in_a_group_made_again(tmp_path: Path) -> None:
    def work(file: str) -> None:
        rank = dist.get_rank()
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
        dist.all_reduce(torch.ones(1))

    events = go(work, str(tmp_path / "store")).trace.events
    assert [e.seq for e in events if e.kind == "collective"] == [0, 1] * 2


# Interrupts, at any moment

INTERRUPTED = """
import os, random, signal, sys, tempfile, threading, time, psutil, labkit
from labkit.runtime import start
signal.signal(signal.SIGINT, signal.default_int_handler)
draw = random.Random(0)
took = []

def work():
    time.sleep(20)

def strike(delay, again):
    time.sleep(delay)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
    if again:
        time.sleep(0.003)
        os.kill(os.getpid(), signal.SIGINT)

def once(delay, again):
    thread = threading.Thread(target=strike, args=(delay, again))
    thread.start()
    while True:
        try:
            labkit.launch(work, ranks=2, threads=1, backend="gloo", timeout=20)
        except KeyboardInterrupt:
            took.append(time.monotonic() - sent[-1])
            break
    while thread.is_alive():
        try:
            thread.join()
            time.sleep(0.01)
        except KeyboardInterrupt:
            pass

for i in range({times}):
    sent = []
    if {cold}:
        start._server = None
    try:
        once(draw.random() * {longest}, i % 2)
    except KeyboardInterrupt:
        pass
until = time.monotonic() + 10
left = None
while left != [] and time.monotonic() < until:
    time.sleep(0.1)
    left = [p.pid for s in psutil.Process().children() for p in s.children()]
    left += [f for f in os.listdir(tempfile.gettempdir()) if f.startswith("labkit-")]
print(left, max(took) < 2, labkit.launch(lambda: 1, ranks=2, backend="gloo").results)
"""


@pytest.mark.parametrize("cold", [False, True], ids=["server up", "server starting"])
def test_an_interrupt_at_any_moment_leaves_nothing(cold: bool, tmp_path: Path) -> None:
    code = INTERRUPTED.format(cold=cold, times=6 if cold else 24, longest=1.5 if cold else 0.2)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout == "[] True [1, 1]\n", done.stderr


def test_a_kernel_killed_while_it_writes_the_job_leaves_no_folder(tmp_path: Path) -> None:
    code = """
        import os, pickle, signal, labkit
        from labkit.runtime import start
        class Fatal:
            def __reduce__(self):
                os.kill(os.getpid(), signal.SIGKILL)
        start._write_job.__globals__["pickle"] = type("P", (), {
            "dump": lambda job, file: pickle.dump(Fatal(), file), "dumps": pickle.dumps})
        labkit.launch(int, ranks=2, backend="gloo")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], timeout=60, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    until = time.monotonic() + 5
    while time.monotonic() < until and list(tmp_path.glob("labkit-*")):
        time.sleep(0.05)
    assert not list(tmp_path.glob("labkit-*"))
