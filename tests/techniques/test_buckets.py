"""Buckets close as torch's do."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from labkit.techniques.buckets import Bucket, fill_buckets


def cut(sizes: list[int], caps: list[float]) -> list[list[int]]:
    tensors = [torch.empty(size) for size in sizes]
    return [[t.numel() for t in bucket] for bucket in fill_buckets(tensors, caps)]


def test_a_bucket_closes_once_it_has_reached_its_cap() -> None:
    assert cut([1, 2, 3, 1, 9, 1], [8.0, 16.0]) == [[1, 2], [3, 1], [9], [1]]
    assert cut([5, 5], [float("inf")]) == [[5, 5]]
    assert cut([], [8.0]) == []


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([torch.float32, torch.float64]))),
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
)
def test_cut_as_torch_cuts(tensors: list[tuple[int, torch.dtype]], caps: list[int]) -> None:
    if not tensors:
        return
    made = [torch.empty(size, dtype=dtype) for size, dtype in tensors]
    place = {id(t): i for i, t in enumerate(made)}
    ours = [[place[id(t)] for t in bucket] for bucket in fill_buckets(made, caps)]
    theirs, _ = dist._compute_bucket_assignment_by_size(made, caps, [False] * len(made))
    assert sorted(ours) == sorted(theirs)


def test_views_are_the_buffer() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.tensor(1.0))]
    bucket = Bucket(parameters)
    bucket.views[parameters[1]].fill_(7)
    assert bucket.flat.tolist() == [0, 0, 0, 0, 0, 0, 7]
    assert bucket.views[parameters[0]].shape == (2, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_minus_zero_is_told_from_zero(dtype: torch.dtype) -> None:
    parameters = [torch.nn.Parameter(torch.ones(3, dtype=dtype)) for _ in range(2)]
    bucket = Bucket(parameters)
    bucket.flat.fill_(-0.0)
    assert bucket.nobody_used(parameters[0])
    bucket.views[parameters[0]][1] += 0.0
    assert not bucket.nobody_used(parameters[0])
    assert bucket.nobody_used(parameters[1])
