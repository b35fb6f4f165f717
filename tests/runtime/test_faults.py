"""Faults hit exactly the step and rank named, and one that hits nothing is an error."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit.runtime.faults import Fault, Kill, Slow, Truncate, check, slow_factor, truncate
from labkit.trace import CLUSTERS, span

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("no_process_left")


def go(fn: Any, *args: Any, **options: Any) -> labkit.Run:
    given = {"ranks": 3, "threads": 1, "backend": "gloo", "timeout": 30} | options
    return labkit.launch(fn, *args, **given)


def steps(count: int = 4, first: int = 0) -> list[int]:
    done = []
    for step in range(first, first + count):
        with span("step", step=step):
            print("step", step, flush=True)
            dist.all_reduce(torch.ones(1))
            done.append(step)
    return done


# Kill


@pytest.mark.parametrize("trace", [True, False])
@pytest.mark.parametrize(("rank", "step"), [(0, 0), (2, 3)])
def test_a_rank_is_killed_when_its_step_begins(rank: int, step: int, trace: bool) -> None:
    words = rf"rank {rank} was killed at step {step}, as the fault asked"
    with pytest.raises(labkit.RankFailed, match=words) as caught:
        go(steps, faults=[Kill(rank, step)], trace=trace)
    assert caught.value.rank == rank
    assert caught.value.run is not None
    said = caught.value.run.output
    assert said[rank] == "".join(f"step {i}\n" for i in range(step))  # nothing of the step itself
    assert all(f"step {step}\n" in said[r] for r in range(3) if r != rank)


def test_a_rank_that_dies_otherwise_is_not_put_down_to_the_fault() -> None:
    def abort() -> None:
        if dist.get_rank() == 1:
            import os

            os.kill(os.getpid(), 9)
        steps()

    with pytest.raises(labkit.RankFailed, match="rank 1 was killed by SIGKILL") as caught:
        go(abort, faults=[Kill(1, step=2)])
    assert "as the fault asked" not in str(caught.value)


def test_without_faults_the_same_program_ends_well() -> None:
    assert go(steps, faults=[]).results == [[0, 1, 2, 3]] * 3


# A fault that strikes nothing


@pytest.mark.parametrize(
    ("count", "first", "did"),
    [(10, 0, "steps 0 to 9 did"), (1, 5, "step 5 did"), (0, 0, "no step began: mark them")],
)
def test_a_step_that_never_began_is_an_error_with_those_that_did(
    count: int, first: int, did: str
) -> None:
    with pytest.raises(labkit.RankFailed) as caught:
        go(steps, count, first, faults=[Kill(2, step=70)])
    text = str(caught.value)
    assert caught.value.rank == 2
    assert "Kill(rank=2, step=70) never struck: step 70 never began on rank 2" in text
    assert did in text
    assert "labkit/runtime" not in text


def test_only_spans_called_step_with_a_whole_number_are_steps() -> None:
    def other() -> None:
        for name, tags in (
            ("epoch", {"step": 1}), ("step", {}), ("step", {"step": "1"}), ("step", {"step": True}),
        ):  # fmt: skip
            with span(name, **tags):
                pass
        with span("step", step=torch.tensor(4)):
            pass
        with span("step", step=6):
            pass

    with pytest.raises(labkit.RankFailed, match="steps 4, 6 did"):
        go(other, faults=[Kill(0, step=1)])


# Truncate


def write(folder: str, name: str) -> None:
    for step in range(3):
        if dist.get_rank() == 0:
            time.sleep(0.02)  # files of one moment would be told apart by name
            (Path(folder) / f"{name}{step}").write_bytes(bytes(1000))
        dist.barrier()
        with span("step", step=step):
            dist.barrier()


def test_the_newest_file_loses_its_end_at_the_step_named(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / ".lock").write_bytes(bytes(1000))
    go(write, str(tmp_path), "deep/file", faults=[Truncate(tmp_path, rank=1, step=2, keep=0.25)])
    sizes = {p.name: p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()}
    assert sizes == {"file0": 1000, "file1": 1000, "file2": 250, ".lock": 1000}


def test_what_comes_later_is_whole(tmp_path: Path) -> None:
    faults = [Truncate(tmp_path, 0, step=1, keep=0), Truncate(tmp_path, 0, step=0)]
    go(write, str(tmp_path), "file", ranks=1, faults=faults)
    assert [(tmp_path / f"file{i}").stat().st_size for i in range(3)] == [500, 0, 1000]


def test_of_equally_new_files_the_last_by_name_is_cut(tmp_path: Path) -> None:
    import os

    for name in ("b", "a"):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1000, 1000))
    truncate(Truncate(str(tmp_path), 0, 0))
    assert [(tmp_path / name).stat().st_size for name in "ab"] == [10, 5]


def test_no_file_to_cut_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(labkit.RankFailed, match="there is no file under") as caught:
        go(steps, faults=[Truncate(tmp_path, rank=1, step=0)])
    assert caught.value.rank == 1


# Slow


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def work() -> None:
    for step in range(2):
        with span("step", step=step):
            with span("forward"):
                spin(0.05)
            dist.all_reduce(torch.ones(1))
    spin(0.05)


def test_each_stretch_of_compute_of_a_slow_rank_is_followed_by_its_sleep() -> None:
    trace = go(work, ranks=2, faults=[Slow(rank=1, factor=3)]).trace
    busy: dict[int, list[Any]] = {0: [], 1: []}
    for event in trace.events:
        if event.kind == "compute" and event.cpu > 0.04:
            busy[event.rank].append(event)
    for events in busy.values():
        assert [e.name for e in events] == ["forward", "forward", "compute"]
    for event in busy[1]:
        assert event.duration >= 2.9 * event.cpu  # a sleep may be longer, never shorter
        assert event.cpu < 0.08
    # The other waits for it inside the all-reduce.
    waiting = [e for e in trace.events if e.rank == 0 and e.kind in ("collective", "wait")]
    assert sum(e.duration for e in waiting) > 0.1


def test_a_paced_rank_is_slowed_by_its_pace() -> None:
    def paced() -> None:
        with span("step", step=0), span("forward", seconds=0.04):
            pass

    trace = go(paced, ranks=2, pace=CLUSTERS["H100"], faults=[Slow(rank=1, factor=2.5)]).trace
    lasted = [e.duration for e in trace.events if e.kind == "span" and e.name == "forward"]
    assert lasted[1] >= 0.08  # 0.1, less what the rank was behind when the span began
    assert lasted[0] < lasted[1]


def test_the_factor_of_a_rank_is_there_for_a_pacer_too() -> None:
    faults: list[Fault] = [Slow(1, 1.4), Kill(2, 3)]
    assert [slow_factor(faults, rank) for rank in range(3)] == [1.0, 1.4, 1.0]
    assert slow_factor((), 0) == 1.0


# What makes no sense is refused before any rank starts


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Kill(-1, 0), ValueError, "rank=-1"),
        (lambda: Kill(0, 1.5), TypeError, "step=1.5: use a whole number"),
        (lambda: Kill(True, 0), TypeError, "rank=True"),
        (lambda: Slow(0, 0.9), ValueError, "factor=0.9: a slow rank takes 1 or more"),
        (lambda: Slow(0, float("inf")), ValueError, "factor=inf"),
        (lambda: Slow(0, "2"), TypeError, "factor='2'"),
        (lambda: Truncate("x", 0, 0, keep=1), ValueError, "keep=1: give a share"),
        (lambda: Truncate("x", 0, 0, keep=-0.1), ValueError, "keep=-0.1"),
        (lambda: Truncate(3, 0, 0), TypeError, "folder=3: give a path"),
    ],
)
def test_a_fault_says_what_is_wrong_with_it(make: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize(
    ("faults", "error", "words"),
    [
        ([Kill(4, 0)], ValueError, r"Kill\(rank=4, step=0\): this run has ranks 0 to 3"),
        ([Kill(1, 0), Kill(1, 3)], ValueError, "one Kill a rank, and this is another"),
        ([Slow(1, 2), Slow(1, 3)], ValueError, "one Slow a rank"),
        ([Truncate("x", 0, 0)] * 2, ValueError, "is there twice"),
        (["kill rank 2"], TypeError, "'kill rank 2' is no fault: use Kill, Slow or Truncate"),
        (Kill(0, 0), TypeError, "give a list"),
        (7, TypeError, "faults=7: give a list"),
        ([Slow(1, 2)], ValueError, "leave trace=False out"),
    ],
)
def test_launch_refuses_faults_that_make_no_sense(faults: Any, error: Any, words: str) -> None:
    trace = "trace" not in words
    with pytest.raises(error, match=words):
        labkit.launch(steps, ranks=4, faults=faults, trace=trace)


def test_faults_of_several_ranks_and_kinds_go_together() -> None:
    faults = [Kill(1, 0), Kill(2, 0), Slow(1, 2), Truncate("x", 0, 0), Truncate("x", 0, 1)]
    assert check(faults, ranks=3, trace=True) == tuple(faults)


def test_under_torchrun_faults_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import labkit\n"
        "try:\n"
        "    labkit.launch(print, backend='gloo', faults=[labkit.faults.Kill(0, 0)])\n"
        "except ValueError as error:\n"
        "    print('refused:', error)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert "refused: faults= needs ranks that labkit has started" in done.stdout
