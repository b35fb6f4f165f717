"""Text, windows and shares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.lessons.data import TAILS, ShardedSampler, Windows, text


def test_pythons_own_text_is_english_and_long_enough() -> None:
    tokens = text()
    assert tokens.dtype == torch.int64
    assert 400_000 < len(tokens) < 600_000
    assert tokens.min() >= 0
    assert tokens.max() < 256
    assert " the " in bytes(tokens[:20_000].tolist()).decode(errors="replace")
    assert torch.equal(tokens, text())


def test_without_pythons_text_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ModuleNotFoundError, match="pass a path to a text of your own"):
        text()


def test_a_text_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("aé", encoding="utf-8")
    assert text(path).tolist() == [97, 0xC3, 0xA9]
    assert text(str(path)).tolist() == [97, 0xC3, 0xA9]


def test_a_path_that_holds_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder"):
        text(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        text(tmp_path / "none")
    empty, latin = tmp_path / "empty", tmp_path / "latin"
    empty.touch()
    latin.write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="is empty"):
        text(empty)
    with pytest.raises(ValueError, match=r"not UTF-8 \(byte 3\)"):
        text(latin)


@pytest.mark.parametrize("length", [5, 8, 9, 10, 13])
def test_every_token_but_the_first_and_a_remainder_is_a_target_once(length: int) -> None:
    windows = Windows(torch.arange(length), context=4)
    tokens, targets = windows.batch(list(range(len(windows))))
    assert torch.equal(targets, tokens + 1)
    assert targets.flatten().tolist() == list(range(1, 4 * len(windows) + 1))
    assert length - 1 - 4 * len(windows) < 4
    nothing, _ = windows.batch([])
    assert nothing.shape == (0, 4)


def test_a_text_too_short_is_named() -> None:
    with pytest.raises(ValueError, match="has 4 bytes, context=4 needs 5"):
        Windows(torch.arange(4), context=4)
    with pytest.raises(ValueError, match="context=0"):
        Windows(torch.arange(4), context=0)


@given(
    st.integers(1, 60), st.integers(1, 7), st.integers(0, 5), st.sampled_from(TAILS), st.booleans()
)
def test_shares_are_a_partition_of_the_stated_order(
    items: int, ranks: int, epoch: int, tail: str, shuffle: bool
) -> None:
    if tail == "drop" and items < ranks:
        return
    samplers = [ShardedSampler(items, r, ranks, 7, shuffle, tail) for r in range(ranks)]
    shares = [s.indices(epoch) for s in samplers]
    every = [i for share in shares for i in share]
    assert sorted(every) == sorted(samplers[0].order(epoch))
    first = samplers[0]
    assert set(every) == set(range(items)) - set(first.dropped(epoch))
    assert len(every) - len(set(every)) == (-items % ranks if tail == "pad" else 0)
    assert len(first.dropped(epoch)) == (items % ranks if tail == "drop" else 0)
    if tail != "uneven":
        assert len({len(share) for share in shares}) == 1
        assert max(len(share) for share in shares) == len(every) // ranks


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 12))
def test_global_batches_do_not_depend_on_the_number_of_ranks(
    items: int, ranks: int, batch: int
) -> None:
    alone = list(ShardedSampler(items, 0, 1).batches(batch))
    dealt = [list(ShardedSampler(items, r, ranks).batches(batch)) for r in range(ranks)]
    together = [sorted(i for share in step for i in share) for step in zip(*dealt, strict=True)]
    assert together == [sorted(step) for step in alone]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"items": 0}, "items=0"),
        ({"rank": 2}, "rank=2 is not one of ranks=2"),
        ({"tail": "wrap"}, "tail='wrap': use one of"),
        ({"items": 1, "tail": "drop"}, "leaves nothing of 1 items on 2 ranks"),
    ],
)
def test_a_bad_share_is_named(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ShardedSampler(**{"items": 8, "rank": 0, "ranks": 2, **bad})


def test_a_batch_that_does_not_deal_out_as_promised_is_refused() -> None:
    with pytest.raises(ValueError, match="batch=5 does not deal out to 2 ranks evenly"):
        list(ShardedSampler(8, 0, 2, tail="drop").batches(5))
    with pytest.raises(ValueError, match="batch=0"):
        list(ShardedSampler(8, 0, 2).batches(0))
