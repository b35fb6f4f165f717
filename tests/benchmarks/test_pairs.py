"""The interval of a median of ratios covers it as often as it says."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
pairs = importlib.import_module("pairs")
sys.path.pop(0)


def test_the_median_of_ratios_is_no_ratio_of_medians() -> None:
    found = pairs.ratio([1, 10, 100, 2, 20, 200, 3], [2, 10, 50, 4, 20, 100, 3])
    assert (found.median, found.low, found.high, found.pairs) == (1, 0.5, 2, 7)
    assert str(found) == "1.000 [0.500, 2.000]"


@pytest.mark.parametrize(("n", "low", "high"), [(6, 1, 6), (10, 2, 9), (20, 6, 15), (40, 14, 27)])
def test_the_interval_lies_between_the_tabled_values(n: int, low: int, high: int) -> None:
    found = pairs.ratio(range(1, n + 1), [1] * n)
    assert (found.low, found.high) == (low, high)


def test_it_covers_the_true_median_95_times_in_100() -> None:
    draw = random.Random(0)
    covered = 0
    for _ in range(1000):
        found = pairs.ratio([draw.lognormvariate(0, 0.3) for _ in range(20)], [1] * 20)
        covered += found.low <= 1 <= found.high
    assert 940 <= covered <= 985


@pytest.mark.parametrize("ours", [[1.0] * 5, [1.0] * 7])
def test_what_are_no_pairs_is_refused(ours: list[float]) -> None:
    with pytest.raises(ValueError, match="pairs"):
        pairs.ratio(ours, [1.0] * min(len(ours), 6))
