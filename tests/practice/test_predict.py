"""A prediction is locked before the run, stays, and is opened again only on purpose."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import labkit
from labkit.practice import Closed, Prediction, Progress, predict
from labkit.practice.content import find
from labkit.runtime.run import Run


@pytest.fixture
def four() -> Prediction:
    return predict("00.four_ranks")


@pytest.fixture
def time() -> Prediction:
    return predict("00.four_ranks_time")


def test_untouched_it_says_so(four: Prediction) -> None:
    assert repr(four) == "Prediction('00.four_ranks', not locked)"
    assert (four.locked, four.value, four.sure, four.seconds, four.when) == (False, *[None] * 4)
    assert repr(four.compare(0.95)) == (
        "No prediction was locked. The run gave: “slower than one rank”."
    )
    assert repr(four) == "Prediction('00.four_ranks', not locked, compared)"
    assert not Progress().path.exists()


def test_a_locked_answer_is_kept_and_drawn(time: Prediction) -> None:
    time.lock(80, sure=True)
    assert repr(time) == "Prediction('00.four_ranks_time', locked)"
    assert (time.value, time.sure, time.seconds) == (80.0, True, 0.08)
    assert time.said == "80 ms, sure"
    again = predict("00.four_ranks_time")  # the cell is run again, perhaps next week
    assert (again.value, again.sure, again.when, again.earlier) == (80.0, True, time.when, True)
    gap = again.compare(341)
    assert gap.right is False
    assert "4.3 times as long" in repr(gap)
    stored = Progress().get("predictions", "00.four_ranks_time")
    assert (stored["right"], stored["actual"]) == (False, 341.0)


def test_only_a_time_can_be_drawn(four: Prediction) -> None:
    four.lock("slower")
    assert four.value == "slower"
    assert four.seconds is None


def test_locked_once_it_stays(four: Prediction) -> None:
    four.lock("four")
    with pytest.raises(Closed, match="Locked already: “4 times as fast”, not sure"):
        four.lock("slower")
    with pytest.raises(Closed, match="Locked already"):
        predict("00.four_ranks").lock("slower")
    assert predict("00.four_ranks").value == "four"


def test_after_the_comparison_it_is_closed(four: Prediction) -> None:
    four.compare("slower")
    with pytest.raises(Closed, match="The run is over"):
        four.lock("slower")
    assert not four.locked


def test_once_a_run_has_begun_it_is_too_late(
    four: Prediction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "begun", Run.begun + 1)
    with pytest.raises(Closed, match="A run has begun since this was asked"):
        four.lock("slower")
    assert not four.locked
    predict("00.four_ranks").lock("slower")  # asked anew, before the next run


def test_every_launch_counts_as_a_run(four: Prediction) -> None:
    labkit.launch(int, ranks=1, backend="gloo", trace=False)
    with pytest.raises(Closed, match="A run has begun"):
        four.lock("slower")


def test_again_clears_and_opens(four: Prediction, monkeypatch: pytest.MonkeyPatch) -> None:
    four.lock("four", sure=True)
    four.compare("slower")
    monkeypatch.setattr(Run, "begun", Run.begun + 1)
    four.again()
    assert repr(four) == "Prediction('00.four_ranks', not locked)"
    assert Progress().get("predictions", "00.four_ranks") is None
    four.lock("slower", sure=False)
    assert repr(four.compare("slower").right) == "True"


@pytest.mark.parametrize("value", [10, 5000, float("nan"), float("inf"), "80", True, None, [80]])
def test_a_number_outside_the_range_is_not_locked(time: Prediction, value: Any) -> None:
    with pytest.raises(ValueError, match=r"lies outside 20 ms to 2,000 ms|is not a finite number"):
        time.lock(value)
    assert not time.locked


@pytest.mark.parametrize("value", ["five", 3, None, ["slower"]])
def test_what_is_no_choice_is_not_locked(four: Prediction, value: Any) -> None:
    with pytest.raises(ValueError, match=r"00\.four_ranks has no choice"):
        four.lock(value)
    assert not four.locked


@pytest.mark.parametrize("actual", [float("nan"), None, True, "slow", [1]])
def test_what_cannot_be_compared_leaves_it_open(four: Prediction, actual: Any) -> None:
    with pytest.raises(ValueError, match=r"00\.four_ranks"):
        four.compare(actual)
    four.lock("slower")


def test_a_number_question_wants_a_number(time: Prediction) -> None:
    with pytest.raises(ValueError, match="asks for a number of ms, not 'slower'"):
        time.compare("slower")


def test_the_rule_and_the_tolerance_can_be_given(four: Prediction, time: Prediction) -> None:
    assert four.compare(0.98, buckets={"same": (0.9, 1.1), "slower": (0, 0.9)}).actual == "same"
    time.lock(250)
    assert time.compare(341).right is False
    assert time.compare(341, tolerance=0.3).right is True
    with pytest.raises(ValueError, match="tolerance=3"):
        time.compare(341, tolerance=3)


@pytest.mark.parametrize(
    "record",
    [
        {"value": "gone", "sure": True, "when": "2026-01-01T00:00:00+00:00"},
        {"value": "four", "sure": "yes", "when": "2026-01-01T00:00:00+00:00"},
        {"value": "four"},
        "four",
        7,
    ],
)
def test_a_stored_answer_that_no_longer_fits_counts_as_none(record: Any) -> None:
    Progress().put("predictions", "00.four_ranks", record)
    four = predict("00.four_ranks")
    assert not four.locked
    assert Progress().get("predictions", "00.four_ranks") == record  # and is not thrown away
    four.lock("slower")


def test_ones_own_question_is_kept_by_its_words() -> None:
    mine = predict(
        question="How long does a step of my own model take on this machine of mine?",
        number={"unit": "s", "low": 0.1, "high": 10},
        inputs={"batch": "32 samples"},
    )
    assert repr(mine) == (
        "Prediction('How long does a step of my own model take on th…', not locked)"
    )
    mine.lock(2)
    assert mine.seconds == 2.0
    again = predict(question=mine.question.question, number={"unit": "s", "low": 0.1, "high": 10})
    assert again.value == 2.0
    assert "2 times as long" in repr(again.compare(4))


def test_ones_own_choices_are_texts_or_a_table() -> None:
    plain = predict(question="Faster?", choices=["yes", "no"])
    plain.lock("no", sure=True)
    assert repr(plain.compare("yes")).startswith("You said “no”, sure. It was “yes”.")
    named = predict(question="Slower?", choices={"y": "yes, much", "n": "no"})
    gap = named.compare(3.0, buckets={"y": (2, 9)})
    assert gap.actual == "y"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "predict needs an id"),
        ({"id": "00.nothing"}, "there is no prediction '00.nothing'"),
        ({"id": "00.four_ranks", "question": "x"}, "or a question of one's own"),
        ({"id": "00.four_ranks", "choices": ["a", "b"]}, "or a question of one's own"),
        ({"question": "x"}, "needs choices or number"),
        ({"question": "", "choices": ["a", "b"]}, "question is empty"),
        ({"question": "x", "choices": ["a"]}, "give two or more"),
        ({"question": "x", "choices": ["a", "a"]}, "'a' is there twice"),
        ({"question": "x", "number": {"unit": "s"}}, "number low = None"),
        ({"question": "x", "choices": ["a", "b"], "inputs": {"n": 4}}, "write a value with its"),
    ],
)
def test_a_question_that_is_none_is_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        predict(**arguments)


def test_a_click_and_a_comparison_at_once_leave_one_state(four: Prediction) -> None:
    def click() -> None:
        try:
            four.lock("four")
        except Closed:
            return

    clicks = [threading.Thread(target=click) for _ in range(8)]
    for thread in clicks:
        thread.start()
    gap = four.compare("slower")
    for thread in clicks:
        thread.join()
    assert four.locked is (gap.said == "four")


def test_asking_loads_no_widget() -> None:
    code = (
        "import sys, labkit\n"
        "labkit.predict('00.four_ranks').compare(0.9)\n"
        "assert not {'anywidget', 'ipywidgets', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_where_nothing_can_be_written_it_is_locked_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    four = Prediction(find("00.four_ranks"), Progress(tmp_path / "file" / "home"))
    with pytest.warns(UserWarning, match="is not stored"):
        four.lock("slower")
    assert four.compare("slower").right is True


def test_progress_holds_what_was_said_and_no_key(four: Prediction) -> None:
    four.lock("four", sure=True)
    text = json.dumps(json.loads(Progress().path.read_text()))
    assert "because" not in text
    assert "slower" not in text
