"""Ranks agree on when to stop and on what the mean is."""

from __future__ import annotations

import math

import torch.distributed as dist

import labkit
from labkit.techniques.agreement import any_rank, global_mean


def answers() -> tuple[list[bool], list[float]]:
    rank = dist.get_rank()
    flags = [any_rank(False), any_rank(rank == 2), any_rank(True)]
    pairs = dist.new_group([0, 1]), dist.new_group([2])
    flags.append(any_rank(rank == 2, pairs[rank // 2]))
    means = [global_mean(6.0 * rank, rank), global_mean(0, 0)]
    means.append(global_mean(rank, 1, pairs[rank // 2]))
    return flags, means


def test_every_rank_hears_the_same_answer() -> None:
    results = labkit.launch(answers, ranks=3, threads=1, timeout=60).results
    for rank, (flags, means) in enumerate(results):
        assert flags == [False, True, True, rank == 2]
        assert means[0] == 6.0  # rank 0 has no item
        assert math.isnan(means[1])
        assert means[2] == (2.0 if rank == 2 else 0.5)
