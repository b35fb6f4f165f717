"""`labkit.launch`: results, output, seeds, failures, and that nothing is left behind."""

from __future__ import annotations

import io
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist

import labkit

pytestmark = pytest.mark.usefixtures("no_process_left")


def go(fn: Callable[..., Any], *args: Any, **options: Any) -> labkit.Run:
    given = {"ranks": 2, "threads": 1, "backend": "gloo", "timeout": 30} | options
    return labkit.launch(fn, *args, **given)


def rank() -> int:
    return dist.get_rank()


def total(x: float) -> float:
    value = torch.tensor([x + rank()])
    dist.all_reduce(value)
    return value.item()


# Results and what travels


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_every_rank_returns_its_result(ranks: int) -> None:
    run = go(total, 1.0, ranks=ranks)
    assert run.results == [sum(1.0 + r for r in range(ranks))] * ranks
    assert run.ranks == ranks
    assert run.state == "finished"
    assert run.poll()


def test_four_ranks_are_the_default() -> None:
    assert labkit.launch(rank, backend="gloo", timeout=30).results == [0, 1, 2, 3]


def test_closures_lambdas_and_classes_of_this_process_travel() -> None:
    class Pair:
        def __init__(self, a: int) -> None:
            self.a = a

    here = 5
    run = go(lambda pair: (pair, pair.a + here + dist.get_rank()), Pair(3))
    assert [value for _, value in run.results] == [8, 9]
    assert all(type(pair) is Pair for pair, _ in run.results)  # not a copy of the class


def test_tensors_and_modules_travel_by_value() -> None:
    net = torch.nn.Linear(3, 2)

    def double(module: torch.nn.Module) -> torch.Tensor:
        with torch.no_grad():
            module.weight *= 2
        return module.weight.detach()

    before = net.weight.detach().clone()
    assert all(torch.equal(w, 2 * before) for w in go(double, net).results)
    assert torch.equal(net.weight, before)


def test_environment_folder_and_path_travel_with_every_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_notebook.py").write_text("ANSWER = 42\n")

    def look() -> tuple[int, str, str]:
        import beside_the_notebook  # type: ignore[import-not-found]

        return beside_the_notebook.ANSWER, os.environ["LABKIT_TEST"], str(Path.cwd())

    go(rank)  # the server is up before these are set
    monkeypatch.setenv("LABKIT_TEST", "here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert go(look).results == [(42, "here", str(tmp_path))] * 2


def test_ranks_find_the_variables_that_torchrun_would_set() -> None:
    def look() -> tuple[str, ...]:
        return tuple(os.environ[k] for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))

    assert go(look).results == [("0", "2", "0"), ("1", "2", "1")]
    assert "RANK" not in os.environ


# Seeds and threads


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def test_one_seed_gives_every_rank_its_own_numbers_again_and_again() -> None:
    first, again, other = (go(draw, seed=s).results for s in (3, 3, 4))
    assert first == again
    assert first[0] != first[1]
    assert set(first[0]).isdisjoint(other[0])


def test_without_a_seed_every_launch_draws_afresh() -> None:
    assert go(draw).results != go(draw).results


def test_threads_are_set_on_every_rank() -> None:
    assert go(torch.get_num_threads, threads=3).results == [3, 3]


# Output


def test_lines_arrive_while_the_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def talk() -> None:
        print("early")
        time.sleep(1.0)
        print("late, and without an end", end="")

    run = go(talk, wait=False)
    time.sleep(0.7)
    while_running = run.output[0]
    run.wait()
    assert while_running == "early\n"
    assert run.output == ["early\nlate, and without an end\n"] * 2
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(
        f"[rank {r}] {line}" for r in (0, 1) for line in ("early", "late, and without an end")
    )


def test_writes_below_python_are_output_too() -> None:
    def talk() -> None:
        os.write(1, b"from C\n")
        os.write(2, "and ünicode\n".encode())
        subprocess.run(["echo", "from a child"], check=True)

    assert go(talk).output == ["from C\nand ünicode\nfrom a child\n"] * 2


def test_ten_megabytes_of_output_are_kept_and_the_cell_gets_a_part(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def talk() -> None:
        if dist.get_rank() == 0:
            for _ in range(10_000):
                print("x" * 1000)

    run = go(talk)
    assert len(run.output[0]) == 10_000 * 1001
    assert len(capsys.readouterr().out) < 500_000


# Failures


def fail(how: Callable[..., Any], *args: Any, **options: Any) -> labkit.RankFailed:
    with pytest.raises(labkit.RankFailed) as caught:
        go(how, *args, **options)
    return caught.value


def test_the_first_failure_is_told_with_its_own_line() -> None:
    def work() -> None:
        if rank() == 1:
            raise ValueError("this one")
        dist.barrier()

    error = fail(work, ranks=3)
    assert error.rank == 1
    assert 'raise ValueError("this one")' in error.traceback
    assert "ValueError: this one" in str(error)
    assert "/labkit/runtime/" not in str(error)
    assert error.run is not None
    assert error.run.state == "failed"


def test_causes_are_told_in_order() -> None:
    def work() -> None:
        try:
            {}["missing"]
        except KeyError as error:
            raise RuntimeError("outer") from error

    told = fail(work).traceback
    assert told.index("KeyError: 'missing'") < told.index("direct cause") < told.index("outer")


def test_a_death_is_told_before_what_follows_from_it() -> None:
    def work() -> None:
        if rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(3))

    error = fail(work, ranks=3)
    assert error.rank == 2
    assert "SIGKILL" in str(error)


def test_an_abort_in_cpp_is_told_with_its_line_and_the_last_operations() -> None:
    def work() -> None:
        dist.all_reduce(torch.ones(4))
        if rank() == 1:
            os.abort()
        dist.barrier()

    text = str(fail(work))
    assert "rank 1 was killed by SIGABRT" in text
    assert "test_launch.py" in text
    assert "rank 1: all_reduce #0 (SUM) of 4 float32 at" in text
    assert "rank 0: barrier #1 at" in text


@pytest.mark.parametrize("how", ["exit", "os_exit", "interrupt"])
def test_leaving_without_a_result_is_a_failure(how: str) -> None:
    def work() -> None:
        if rank() == 1:
            if how == "exit":
                sys.exit(3)
            if how == "interrupt":
                raise KeyboardInterrupt
            os._exit(3)
        dist.barrier()

    assert fail(work).rank == 1


@pytest.mark.parametrize("trace", [True, False])
def test_a_rank_that_left_early_is_named(trace: bool) -> None:
    def work() -> None:
        if rank() == 0:
            dist.all_reduce(torch.ones(3))

    if trace:
        with pytest.raises(labkit.Deadlock, match="rank 0 waits for a rank that has finished"):
            go(work, patience=0.5)
    else:
        error = fail(work, trace=False)
        assert error.rank == 0
        assert "rank 1 had finished by then" in str(error)


def test_a_result_that_cannot_travel_is_told() -> None:
    def work() -> Any:
        return (i for i in range(3))

    assert "a generator, which cannot leave its rank" in str(fail(work))


def test_a_timeout_says_what_each_rank_was_doing() -> None:
    def work() -> None:
        if rank() == 1:
            time.sleep(60)
        dist.all_reduce(torch.ones(3))

    began = time.monotonic()
    with pytest.raises(labkit.TimedOut) as caught:
        go(work, ranks=3, timeout=3)
    assert time.monotonic() - began < 8
    text = str(caught.value)
    assert "rank 0: in all_reduce, called at" in text
    assert re.search(r"rank 1: running at .* and has not entered all_reduce #0", text)
    assert "rank 2: all_reduce #0 (SUM) of 3 float32 at" in text
    assert "timeout=3 s" in text


def test_the_next_launch_works_after_every_kind_of_failure() -> None:
    def work(how: str) -> None:
        if rank() == 1:
            os.abort() if how == "abort" else sys.exit(1)
        dist.barrier()

    for how in ("abort", "exit"):
        fail(work, how)
        assert go(total, 1.0).results == [3.0, 3.0]


# Bad arguments, told before a rank starts


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"ranks": 0}, ValueError, "ranks=0"),
        ({"ranks": -1}, ValueError, "ranks=-1"),
        ({"ranks": 2.0}, TypeError, "ranks=2.0"),
        ({"ranks": True}, TypeError, "ranks=True"),
        ({"ranks": 251}, ValueError, "at most 250"),
        ({"threads": 0}, ValueError, "threads=0"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"seed": "a"}, TypeError, "seed='a'"),
        ({"timeout": 0}, ValueError, "timeout=0"),
        ({"timeout": float("nan")}, ValueError, "timeout=nan"),
        ({"timeout": "1"}, TypeError, "timeout='1'"),
        ({"patience": -1}, ValueError, "patience=-1"),
        ({"patience": None}, TypeError, "patience=None: use a number of seconds"),
        ({"backend": "glo"}, ValueError, "backend='glo'"),
        ({"backend": "nccl"}, ValueError, "0 GPUs here"),
        ({"pace": 1}, TypeError, "pace=1"),
        ({"memory": "much"}, ValueError, "memory='much'"),
        ({"faults": ["kill"]}, TypeError, "'kill' is no fault"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        go(rank, **options)


def test_what_cannot_be_launched_is_named() -> None:
    async def later() -> None: ...

    lock = threading.Lock()
    with pytest.raises(TypeError, match="not 3"):
        go(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="later is an async function"):
        go(later)
    with pytest.raises(TypeError, match="argument 2 of <lambda>, a generator"):
        go(lambda a, b: None, 1, (i for i in ()))
    with pytest.raises(TypeError, match="uses 'lock', a lock"):
        go(lambda: lock)
    with pytest.raises(TypeError, match="does not take these 1 arguments"):
        go(rank, 1)


def test_ranks_cannot_launch_ranks() -> None:
    assert "called on rank" in str(fail(lambda: labkit.launch(rank)))


# Runs in the background


def test_a_run_in_the_background_can_be_watched_and_stopped() -> None:
    def work() -> None:
        time.sleep(60)

    began = time.monotonic()
    run = go(work, wait=False)
    assert not run.poll()
    assert repr(run) == "Run(ranks=2, gloo, running)"
    run.stop()
    assert run.state == "stopped"
    assert time.monotonic() - began < 10
    with pytest.raises(RuntimeError, match="was stopped"):
        _ = run.results
    assert not any(psutil.pid_exists(pid) for pid in run.pids)


def test_one_rank_can_be_killed() -> None:
    def work() -> None:
        time.sleep(0.2)
        dist.barrier()
        time.sleep(60)

    run = go(work, ranks=3, wait=False)
    time.sleep(0.5)
    with pytest.raises(ValueError, match="rank 3"):
        run.kill(3)
    run.kill(1)
    with pytest.raises(labkit.RankFailed, match="rank 1 was killed by SIGKILL") as caught:
        run.wait()
    assert caught.value.rank == 1


def test_runs_side_by_side_do_not_disturb_each_other() -> None:
    found: dict[int, list[Any]] = {}

    def one(i: int) -> None:
        found[i] = go(total, float(i), ranks=2 + i % 2).results

    threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: [sum(i + r for r in range(2 + i % 2))] * (2 + i % 2) for i in range(6)}


# Nothing is left behind


def test_the_private_folder_is_private_and_goes_away() -> None:
    def look() -> tuple[str, int]:
        folder = dist.distributed_c10d._get_default_store().underlying_store.path
        return folder, Path(folder).parent.stat().st_mode & 0o777

    store, mode = go(look).results[0]
    assert mode == 0o700
    assert not Path(store).parent.exists()


def test_nothing_listens_beyond_loopback() -> None:
    def look() -> set[str]:
        dist.barrier()
        found = psutil.Process().net_connections(kind="inet")
        return {c.laddr.ip for c in found}

    assert set.union(*go(look).results) <= {"127.0.0.1", "::1"}


def test_what_a_rank_started_ends_with_it() -> None:
    def work() -> int:
        child = subprocess.Popen(["sleep", "300"])
        own_session = subprocess.Popen(["sleep", "300"], start_new_session=True)
        return child.pid, own_session.pid

    pids = [pid for pair in go(work).results for pid in pair]
    until = time.monotonic() + 3
    while time.monotonic() < until and any(psutil.pid_exists(p) for p in pids):
        time.sleep(0.05)
    assert not any(psutil.pid_exists(p) for p in pids)


KERNEL = """
import os, sys, time, torch, torch.distributed as dist, labkit
def deep():
    with open({pids!r}, "a") as f:
        f.write(f"{{os.getpid()}}\\n")
    {work}
labkit.launch(deep, ranks=2, threads=1, backend="gloo")
"""


def gone_after(sig: int, work: str, tmp_path: Path, whom: str = "kernel") -> bool:
    """Whether all ranks end after the kernel (or its rank server) got a signal in mid-run."""
    pids = tmp_path / "pids"
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL.format(pids=str(pids), work=work)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + 30
        while not (pids.exists() and len(pids.read_text().split()) == 2):
            assert time.monotonic() < until, "the ranks never started"
            assert kernel.poll() is None
            time.sleep(0.05)
        time.sleep(0.3)
        server = psutil.Process(kernel.pid).children()[0]
        ranks = [int(p) for p in pids.read_text().split()]
        os.kill(kernel.pid if whom == "kernel" else server.pid, sig)
        until = time.monotonic() + 5
        watched = [*ranks, server.pid]
        while time.monotonic() < until and any(psutil.pid_exists(p) for p in watched):
            time.sleep(0.05)
            kernel.poll()
        return not any(psutil.pid_exists(p) for p in watched)
    finally:
        kernel.kill()
        kernel.wait()


DEEP = "x = torch.randn(3000, 3000)\n    while True: x = (x @ x).clamp(-1, 1)"
WAITING = "dist.all_reduce(torch.ones(1)) if dist.get_rank() else time.sleep(600)"


@pytest.mark.parametrize("work", [DEEP, WAITING], ids=["deep in C", "waiting"])
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM], ids=["KILL", "TERM"])
def test_ranks_end_with_the_kernel(sig: int, work: str, tmp_path: Path) -> None:
    assert gone_after(sig, work, tmp_path)


def test_ranks_end_with_the_server(tmp_path: Path) -> None:
    assert gone_after(signal.SIGKILL, DEEP, tmp_path, whom="server")


def test_a_dead_server_is_replaced() -> None:
    go(rank)
    from labkit.runtime import start

    server = start.rank_server()
    server.process.kill()
    server.process.wait()
    assert go(rank).results == [0, 1]


def test_two_kernels_do_not_disturb_each_other() -> None:
    code = textwrap.dedent("""
        import labkit, torch, torch.distributed as dist
        def total():
            x = torch.ones(1)
            dist.all_reduce(x)
            return x.item()
        print([labkit.launch(total, ranks=2, backend="gloo").results[0] for _ in range(3)])
    """)
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [p.communicate(timeout=60)[0].strip() for p in both] == ["[2.0, 2.0, 2.0]"] * 2


# The other way to start ranks (macOS, Windows), run here


def test_ranks_as_fresh_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_START", "spawn")
    run = go(total, 1.0, timeout=60)
    assert run.results == [3.0, 3.0]
    assert len(run.trace.events) > 0

    def work() -> None:
        if rank() == 1:
            raise ValueError("fresh")
        dist.barrier()

    assert fail(work, timeout=60).rank == 1


def test_an_unknown_way_to_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_START", "thread")
    with pytest.raises(ValueError, match="LABKIT_START='thread'"):
        go(rank)


# Where the replaced output goes


def test_output_goes_to_whatever_stdout_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    there = io.StringIO()
    monkeypatch.setattr(sys, "stdout", there)
    go(lambda: print("here"), ranks=1)
    assert there.getvalue() == "[rank 0] here\n"
