"""What is told after the run, for each kind of answer; no case of it scolds."""

from __future__ import annotations

import pytest

from labkit.practice.content import find
from labkit.practice.gap import Gap, gap
from labkit.practice.question import Choice, Number, Question

TIME = find("00.four_ranks_time")
FOUR = find("00.four_ranks")
OWN = Question("How long?", "How long?", number=Number("ms", 1, 1000), unit="ms")


def told(*arguments: object) -> Gap:
    return gap(*arguments)  # type: ignore[arg-type]


def test_a_wrong_number_is_told_with_its_misconception_and_the_reason() -> None:
    found = told(TIME, 80.0, True, 341.0)
    assert found.right is False
    assert found.words == (
        "You said 80 ms, sure. It took 341 ms: 4.3 times as long.",
        next(one.because for one in TIME.known if one.value == 80),
        TIME.because,
        "You were sure of it, so this is the one to look at twice.",
    )
    assert repr(found) == " ".join(found.words)


def test_a_wrong_number_that_nobody_knows_gets_no_misconception() -> None:
    found = told(TIME, 100.0, False, 341.0)
    assert found.words == (
        "You said 100 ms, not sure. It took 341 ms: 3.4 times as long.",
        TIME.because,
    )


def test_a_right_number_is_told_why_too() -> None:
    found = told(TIME, 320.0, True, 341.0)
    assert found.right is True
    assert found.words == (
        "You said 320 ms, sure. It took 341 ms: within 10 %.",
        TIME.because,
    )
    unsure = told(TIME, 335.0, False, 341.0)
    assert unsure.words[-1] == "You were not sure, and had it right: now you can be."


def test_a_choice_is_told_by_what_it_rests_on() -> None:
    found = told(FOUR, "four", True, "slower")
    assert found.right is False
    assert found.words[0] == "You said “4 times as fast”, sure. It was “slower than one rank”."
    assert found.words[1:3] == (FOUR.choice("four").because, FOUR.choice("slower").because)
    right = told(FOUR, "slower", True, "slower")
    assert right.right is True
    assert right.words == (
        "You said “slower than one rank”, sure. So it was.",
        FOUR.choice("slower").because,
    )


def test_without_a_prediction_the_words_are_the_same_in_every_run() -> None:
    assert repr(told(TIME, None, False, 341.0)) == repr(told(TIME, None, False, 333.3))
    assert repr(told(TIME, None, False, 341.0)) == (
        "No prediction was locked. It took 335 ms, give or take 10 %."
    )
    found = told(FOUR, None, False, "slower")
    assert repr(found) == "No prediction was locked. The run gave: “slower than one rank”."
    assert found.right is None
    assert found.because == FOUR.choice("slower").because


def test_a_run_that_is_not_as_expected_judges_nobody() -> None:
    found = told(TIME, 335.0, True, 512.0)
    assert found.right is None
    assert found.words[0] == "You said 335 ms, sure. It took 512 ms: 53 % longer."
    assert found.words[-1] == "The formula gives 335 ms."
    assert "512 ms. The formula gives 335 ms." in repr(told(TIME, None, False, 512.0))
    odd = told(FOUR, "slower", True, "same")
    assert odd.right is None
    assert odd.words[-1].startswith("Expected was “slower than one rank”")
    assert "look at twice" not in repr(odd)


def test_a_question_of_ones_own_is_compared_alone() -> None:
    assert repr(told(OWN, 10.0, False, 20.0)) == (
        "You said 10 ms, not sure. It took 20 ms: 2 times as long."
    )
    assert repr(told(OWN, None, False, 20.0)) == "No prediction was locked. It took 20 ms."
    pick = Question("a?", "a?", choices=(Choice("x", "this"), Choice("y", "that")))
    assert repr(told(pick, "x", False, "y")) == "You said “this”, not sure. It was “that”."


def test_the_words_are_text_in_html() -> None:
    pick = Question("a?", "a?", choices=(Choice("x", "<b>this</b>"), Choice("y", "that")))
    html = told(pick, "x", False, "y")._repr_html_()
    assert "&lt;b&gt;this" in html
    assert html.count("<p>") == 1


@pytest.mark.parametrize("choice", [c.id for c in FOUR.choices])
def test_nothing_scolds(choice: str) -> None:
    text = repr(told(FOUR, choice, True, "slower"))
    assert not {"!", "wrong", "mistake", "should have"} & set(text.split())
    assert "!" not in text
