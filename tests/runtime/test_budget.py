"""The budget: how it is written, and how a run that is over it fails."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import labkit
from labkit.lessons.train import train_data_parallel
from labkit.runtime.budget import Overrun, parse_budget
from labkit.trace.memory import Held

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("no_process_left")

WIDTH = 50  # a matrix of 10,000 bytes
MATRIX = WIDTH * WIDTH * 4


def train(steps: int = 2, rows: int = 1) -> str:
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        with labkit.span("step", step=step):
            optimizer.zero_grad()
            model(torch.ones(rows, WIDTH)).sum().backward()
            optimizer.step()
    return "done"


def go(fn: Any, *args: Any, **options: Any) -> labkit.Run:
    given = {"ranks": 2, "threads": 1, "backend": "gloo", "timeout": 30} | options
    return labkit.launch(fn, *args, **given)


# How it is written


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64 MB", 64_000_000),
        ("64MB", 64_000_000),
        (" 64 mb ", 64_000_000),
        ("1.5 GB", 1_500_000_000),
        ("64 MiB", 64 * 2**20),
        ("0.5 KiB", 512),
        (".5 kB", 500),
        ("1 B", 1),
        ("2 TB", 2 * 10**12),
        (1234, 1234),
        (64e6, 64_000_000),
        ("measure", math.inf),
    ],
)
def test_a_size_is_read(text: str | float, size: float) -> None:
    assert parse_budget(text) == size


def test_without_a_budget_nothing_is_counted() -> None:
    assert parse_budget(None) is None


@pytest.mark.parametrize(
    "bad", ["64", "MB", "64 M", "-3 MB", "1,000 MB", "much", "", "1e3 MB", "64 MB a rank"]
)
def test_text_that_is_no_size_is_quoted_with_what_to_write(bad: str) -> None:
    with pytest.raises(ValueError, match=r'memory=.* is no size: write "64 MB"') as caught:
        labkit.launch(train, memory=bad)
    assert repr(bad) in str(caught.value)


@pytest.mark.parametrize("bad", [0, -1, 0.5, "0 MB", float("inf"), float("nan")])
def test_a_size_that_holds_nothing_is_no_budget(bad: Any) -> None:
    with pytest.raises(ValueError, match="is no budget: write"):
        labkit.launch(train, memory=bad)


@pytest.mark.parametrize("bad", [True, [64], b"64 MB"])
def test_what_is_neither_text_nor_a_number_is_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="memory="):
        labkit.launch(train, memory=bad)


# How a run fails


def test_a_run_within_its_budget_is_like_any_other() -> None:
    run = go(train, memory=4 * MATRIX + 4)  # to the byte: AdamW's step counter takes 4
    assert run.results == ["done", "done"]
    assert run.budget == 4 * MATRIX + 4


def test_one_byte_less_is_too_little_and_the_four_parts_are_told() -> None:
    with pytest.raises(labkit.OutOfMemory) as caught:
        go(train, memory=4 * MATRIX + 3)
    error = caught.value
    assert error.rank == 0
    assert error.budget == 4 * MATRIX + 3
    assert error.parts == {
        "weights": MATRIX, "gradients": MATRIX, "optimizer": 2 * MATRIX + 4, "activations": 0,
    }  # fmt: skip
    text = str(error)
    assert "rank 0 is out of memory at the end of an optimizer step" in text
    assert "1 B more than the budget of 40 kB" in text
    rows = [line.split() for line in text.splitlines()[1:6]]
    assert rows == [
        ["weights", "10,000", "B", "10", "kB"],
        ["gradients", "10,000", "B", "10", "kB"],
        ["optimizer", "20,004", "B", "20", "kB"],
        ["activations", "0", "B", "0", "B"],
        ["total", "40,004", "B", "40", "kB"],
    ]
    assert error.traceback.splitlines()[-2].strip() == "optimizer.step()"  # not what torch calls
    assert error.traceback in f"{text}\n"
    assert error.run is not None


def test_all_ranks_fail_with_the_same_bytes() -> None:
    with pytest.raises(labkit.OutOfMemory, match="ranks 1, 2, 3 failed with the same bytes") as e:
        go(train, ranks=4, memory="35 kB")
    assert [h.rank for h in e.value.held] == [0, 1, 2, 3]
    assert len({tuple(h.parts.values()) for h in e.value.held}) == 1


def test_ranks_that_hold_different_amounts_are_told_apart() -> None:
    def uneven() -> None:
        train(rows=1 + 2000 * dist.get_rank())

    with pytest.raises(labkit.OutOfMemory, match="at the end of a forward") as caught:
        go(uneven, memory="100 kB")
    assert [h.rank for h in caught.value.held] == [1]
    assert caught.value.parts["activations"] == 2001 * WIDTH * 4


@pytest.mark.parametrize(
    ("budget", "rows", "when"),
    [
        (MATRIX - 1, 1, "at the end of a forward"),
        (3 * MATRIX, 1, "at the end of an optimizer step"),
        (4 * MATRIX + 4, 500, "at the end of a forward"),
    ],
)
def test_it_is_told_when_it_was_noticed(budget: int, rows: int, when: str) -> None:
    with pytest.raises(labkit.OutOfMemory, match=when):
        go(train, 2, rows, ranks=1, memory=budget)


def test_the_learner_may_catch_it_and_try_less() -> None:
    def smaller_and_smaller() -> int:
        rows = 4096
        while True:
            try:
                train(1, rows)
                return rows
            except labkit.OutOfMemory:
                rows //= 2

    assert go(smaller_and_smaller, memory="250 kB").results == [1024, 1024]


def test_an_unrecorded_run_has_a_budget_too() -> None:
    with pytest.raises(labkit.OutOfMemory):
        go(train, memory="35 kB", trace=False)
    assert go(train, memory="measure", trace=False).results == ["done", "done"]


def test_the_rank_that_waits_for_a_failed_one_is_not_blamed() -> None:
    def only_rank_1() -> None:
        if dist.get_rank() == 1:
            train()
        dist.barrier()

    with pytest.raises(labkit.OutOfMemory) as caught:
        go(only_rank_1, memory="35 kB")
    assert [h.rank for h in caught.value.held] == [1]


def test_measuring_leaves_marks_and_has_no_limit() -> None:
    run = go(train, memory="measure")
    assert run.budget is None
    assert run.trace.memory() == tuple(Held(r, MATRIX, MATRIX, 2 * MATRIX + 4, 0) for r in (0, 1))
    assert run.trace.memory(step=0) == run.trace.memory()
    assert "Memory at each rank's peak" in str(run.trace.summary())


def test_a_run_without_a_budget_counts_nothing_and_keeps_torch_as_it_is() -> None:
    def look() -> tuple[bool, str]:
        from torch.nn.modules import module

        hooks = module._global_forward_hooks or module._global_forward_pre_hooks
        return bool(hooks), torch.autograd._engine_run_backward.__module__

    run = go(look)
    assert run.results == [(False, "torch.autograd.graph")] * 2
    assert run.trace.memory() == ()
    assert "Memory" not in str(run.trace.summary())


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_small_gpt_needs_23_mb_for_its_states_on_every_rank(ranks: int) -> None:
    run = go(train_data_parallel, 1, 16, ranks=ranks, memory="measure")
    # 1,439,424 parameters in FP32: weights, gradients, two moments; a counter for each of 42.
    states = (4 * 1_439_424, 4 * 1_439_424, 8 * 1_439_424 + 4 * 41, 0)
    last = [e for e in run.trace.events if e.kind == "memory"][-4:]
    assert tuple(e.bytes for e in last) == states


def test_under_torchrun_the_budget_holds_too(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import labkit, torch\n"
        "def fn():\n"
        "    torch.nn.Linear(50, 50)(torch.ones(1, 50))\n"
        "try:\n"
        "    labkit.launch(fn, backend='gloo', memory='9 kB')\n"
        "except labkit.OutOfMemory as error:\n"
        "    print('caught', error.parts)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert "caught {'weights': 10200, 'gradients': 0, 'optimizer': 0" in done.stdout


def test_the_error_travels_to_another_process_whole() -> None:
    error = labkit.OutOfMemory(Overrun(Held(3, 5, 6, 7, 8), 20, "at the start of a backward"))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert (again.rank, again.budget, again.parts) == (3, 20, error.parts)
