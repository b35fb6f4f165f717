from __future__ import annotations

import pytest

from labkit.practice.question import Choice, Question

ASKED = Question(
    "00.q",
    "Which?",
    choices=(Choice("less", "less", high=1.0), Choice("more", "more", low=1.0), Choice("no", "no")),
    unit="ms",
)


def test_a_measured_number_means_the_choice_whose_range_holds_it() -> None:
    assert ASKED.meant_by(0.999).id == "less"
    assert ASKED.meant_by(1.0).id == "more"
    assert not ASKED.choice("no").holds(0.0)


def test_ranges_can_be_given_anew() -> None:
    other = ASKED.adjusted(0.2, {"no": (5, 9)})
    assert other.meant_by(5).id == "no"
    assert other.tolerance == 0.2
    with pytest.raises(ValueError, match=r"no choice of 00\.q says which of them 0\.5 ms means"):
        other.meant_by(0.5)
    assert ASKED.adjusted(None, None) == ASKED


def test_a_choice_that_is_not_there_is_told() -> None:
    with pytest.raises(ValueError, match=r"00.q has no choice 'x' \(choices: less, more, no\)"):
        ASKED.choice("x")
    with pytest.raises(ValueError, match="has no choice 'x'"):
        ASKED.adjusted(None, {"x": (0, 1)})


@pytest.mark.parametrize("tolerance", [0, 1, -0.1])
def test_a_tolerance_is_a_share(tolerance: float) -> None:
    with pytest.raises(ValueError, match="use a share between 0 and 1"):
        ASKED.adjusted(tolerance, None)


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="the first is to be smaller"):
        ASKED.adjusted(None, {"no": (2, 2)})
