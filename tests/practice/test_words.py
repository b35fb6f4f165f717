from __future__ import annotations

import pytest

from labkit.practice.words import number, quantity, ratio, scaled


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (335, "335"), (335.4, "335"), (8.64, "8.64"), (8.0, "8"), (0.0476, "0.0476"),
        (1400, "1,400"), (1234567, "1,230,000"), (999.7, "1,000"), (100.0, "100"), (-80, "-80"),
        (1e-9, "1e-09"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_units_stand_where_people_write_them() -> None:
    assert quantity(335, "ms") == "335 ms"
    assert quantity(3.2, "×") == "3.2×"
    assert quantity(12, "") == "12"
    assert scaled(5_760_000, "B") == "5.76 MB"
    assert scaled(12, "B") == "12 B"
    assert scaled(1.5e12, "FLOP") == "1.5 TFLOP"


@pytest.mark.parametrize(
    ("said", "actual", "unit", "words"),
    [
        (80, 335, "ms", "4.2 times as long"),
        (10, 335, "ms", "34 times as long"),
        (300, 335, "ms", "12 % longer"),
        (400, 335, "s", "16 % shorter"),
        (1400, 335, "ms", "what you said is 4.2 times that"),
        (5.76, 17.28, "MB", "3 times as much"),
        (5.76, 8.64, "MB", "50 % more"),
        (10, 8, "MB", "20 % less"),
        (335, 335.1, "ms", "the same to less than 1 %"),
        (0, 4, "MB", "off by 4 MB"),
        (3, -1, "", "off by 4"),
    ],
)
def test_the_ratio_is_told_in_words(said: float, actual: float, unit: str, words: str) -> None:
    assert ratio(said, actual, unit) == words
