"""Training on ranks gives what one process gives, and learns."""

from __future__ import annotations

from pathlib import Path

import pytest

import labkit
from labkit.lessons.model import GPTConfig
from labkit.lessons.train import Trained, train_data_parallel, train_one

TINY = GPTConfig.tiny()


def on_ranks(ranks: int, **options: object) -> list[Trained]:
    def train() -> Trained:
        return train_data_parallel(**options)  # type: ignore[arg-type]

    return labkit.launch(train, ranks=ranks, threads=1, timeout=100, trace=False).results


def in_one(**options: object) -> Trained:
    """In a process of its own, so that the number of threads is the same."""

    def train() -> Trained:
        return train_one(**options)  # type: ignore[arg-type]

    return labkit.launch(train, ranks=1, threads=1, timeout=100, trace=False).results[0]


def distance(a: Trained, b: Trained) -> float:
    return max((a.weights[n] - b.weights[n]).abs().max().item() for n in a.weights)


@pytest.mark.parametrize("batch", [8, 5])
def test_two_ranks_give_the_bits_of_one_process(batch: int) -> None:
    first, second = on_ranks(2, steps=6, batch=batch, config=TINY)
    alone = in_one(steps=6, batch=batch, config=TINY, shards=2)
    assert first.checksum == second.checksum == alone.checksum
    assert first.losses == second.losses == alone.losses


@pytest.mark.parametrize(("ranks", "batch"), [(1, 4), (3, 8), (4, 8), (4, 3)])
def test_any_ranks_stay_equal_and_near_the_whole_batch(ranks: int, batch: int) -> None:
    first, *others = on_ranks(ranks, steps=6, batch=batch, config=TINY, lr=1e-3)
    assert all(other.checksum == first.checksum for other in others)
    whole = in_one(steps=6, batch=batch, config=TINY, lr=1e-3)
    # AdamW moves each weight by about lr a step whatever the gradient's size, so that rounding
    # in a gradient near zero shows in full.
    assert distance(first, whole) < 6e-3 * 0.05
    assert first.losses == pytest.approx(whole.losses, rel=1e-5)
    assert distance(first, in_one(steps=6, batch=batch, config=TINY, lr=1e-3, seed=1)) > 1e-2


@pytest.mark.parametrize("overlap", [True, False])
def test_overlap_changes_nothing_on_two_ranks(overlap: bool) -> None:
    first, _ = on_ranks(2, steps=3, batch=4, config=TINY, overlap=overlap, bucket_mb=0.01)
    assert first.checksum == in_one(steps=3, batch=4, config=TINY, shards=2).checksum


def test_steps_run_on_into_the_next_epoch(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("to be or not to be, that is the question " * 4, encoding="utf-8")
    first, second = on_ranks(2, steps=8, batch=4, config=TINY, path=path)
    assert len(first.losses) == 8
    assert first.checksum == second.checksum
    assert first.losses[-1] < first.losses[0]


def test_the_loss_falls_below_three() -> None:
    first, *others = on_ranks(4)
    assert first.losses[0] > 5
    assert sum(first.losses[-5:]) / 5 < 3.0
    assert all(other.checksum == first.checksum for other in others)


def test_the_parts_of_a_step_are_marked() -> None:
    def train() -> None:
        train_data_parallel(steps=2, batch=4, config=TINY)

    trace = labkit.launch(train, ranks=2, threads=1, timeout=60).trace
    assert [step.index for step in trace.steps] == [0, 1]
    for rank in (0, 1):
        spans = [e.name for e in trace.step(1).events if e.kind == "span" and e.rank == rank]
        assert {"forward", "backward", "optimizer"} <= set(spans)


def test_no_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="steps=0"):
        train_one(steps=0, config=TINY)
