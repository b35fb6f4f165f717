"""What reaches the page: the question and the learner's own answer, and no key before the end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from labkit.practice import content, predict
from labkit.practice.content import read_file
from labkit.practice.predict import Prediction
from labkit.practice.question import Question
from labkit.widgets.predict import Predict

ALL = [q for path in sorted(content.FOLDER.glob("*.toml")) for q in read_file(path)]


def page(prediction: Prediction) -> str:
    """All that the browser is sent for it: state, and what the cell displays."""
    data, _ = prediction._repr_mimebundle_()
    state = prediction._widget.get_state()
    state = {key: value for key, value in state.items() if key not in ("_esm", "_css")}
    return json.dumps([state, data, prediction._widget._anywidget_id], ensure_ascii=False)


def keys(question: Question) -> set[str]:
    """What tells the answer."""
    found = {choice.because for choice in question.choices} | {question.because}
    found |= {one.because for one in question.known}
    if question.answer is not None:
        found |= {f"{one.value:g}," for one in question.known} | {f"{question.answer:g},"}
    return found - {""}


@pytest.mark.parametrize("question", ALL, ids=lambda q: q.id)
def test_no_key_is_on_the_page_before_the_run_is_over(question: Question) -> None:
    prediction = predict(question.id)
    hidden = keys(question)
    assert hidden
    before = page(prediction)
    assert not [key for key in hidden if key in before]
    value = question.choices[0].id if question.choices else question.number.high  # type: ignore[union-attr]
    prediction.lock(value, sure=True)
    locked = page(prediction)
    assert not [key for key in hidden if key in locked]
    for text in (before, locked):
        state = json.loads(text)[0]
        assert set(state["asked"]) == {"question", "inputs", "choices", "number"}
        assert all(len(choice) == 2 for choice in state["asked"]["choices"])
        assert state["state"]["told"] == []
        assert not {"right", "because", "known", "answer", "tolerance"} & set(state["state"])


def test_the_page_is_the_same_whichever_choice_is_right() -> None:
    (four,) = (q for q in ALL if q.id == "00.four_ranks")
    table: dict[str, Any] = {"id": four.id, "question": four.question, "inputs": four.inputs}
    shown = [
        Prediction(Question(**table, choices=four.choices, unit=four.unit, right=choice.id))
        for choice in four.choices
    ]
    states = [p._repr_mimebundle_()[0]["text/html"] for p in shown]
    states += [json.dumps(p._widget.get_state(["asked", "state"])) for p in shown]
    assert len(set(states)) == 2


def test_after_the_run_the_words_are_there() -> None:
    prediction = predict("00.four_ranks")
    prediction._repr_mimebundle_()
    prediction.lock("four", sure=True)
    gap = prediction.compare("slower")
    state = prediction._widget.state
    assert state["told"] == list(gap.words)
    assert state["closed"] is True
    assert state["again"] is True


def test_who_skipped_is_told_why_too() -> None:
    prediction = predict("00.four_ranks")
    prediction._repr_mimebundle_()
    gap = prediction.compare("slower")
    assert prediction._widget.state["told"] == [*gap.words, gap.because]
    assert prediction._widget.state["locked"] is None


def test_a_click_locks_and_a_late_one_is_told() -> None:
    prediction = predict("00.four_ranks")
    prediction._repr_mimebundle_()
    widget: Predict = prediction._widget
    widget._said(widget, {"lock": {"value": "four", "sure": True}}, [])
    assert (prediction.value, prediction.sure) == ("four", True)
    assert widget.state["locked"] == {"value": "four", "sure": True}
    assert widget.state["status"] == "Locked: “4 times as fast”, sure."
    seen = []
    widget.observe(lambda change: seen.append(change.new["status"]), "state")
    for _ in range(2):
        widget._said(widget, {"lock": {"value": "slower", "sure": True}}, [])
    assert prediction.value == "four"
    assert len(seen) == 2  # the second refusal reaches the page as well
    assert seen[1].startswith("Locked already")
    widget._said(widget, {"again": True}, [])
    assert not prediction.locked
    assert widget.state["locked"] is None


@pytest.mark.parametrize("value", [None, "gone", 3])
def test_a_bad_message_from_the_page_is_told_there(value: object) -> None:
    prediction = predict("00.four_ranks")
    prediction._repr_mimebundle_()
    widget = prediction._widget
    widget._said(widget, {"lock": {"value": value, "sure": False}}, [])
    assert "has no choice" in widget.state["status"]
    assert not prediction.locked


def test_an_answer_from_before_says_when() -> None:
    first = predict("00.four_ranks_time")
    first.lock(80)
    second = predict("00.four_ranks_time")
    second._repr_mimebundle_()
    state = second._widget.state
    assert state["status"] == f"Locked on {(first.when or '')[:10]}: 80 ms, not sure."
    assert state["again"] is True


def test_without_a_kernel_the_question_can_be_read() -> None:
    data, _ = predict("00.four_ranks")._repr_mimebundle_()
    assert data["text/plain"] == "Prediction('00.four_ranks', not locked)"
    for text in ("How fast is a step with four ranks", "320 ms", "<li>slower than one rank</li>"):
        assert text in data["text/html"]
    assert predict("00.four_ranks")._repr_mimebundle_()[0]["text/html"] == data["text/html"]
    number, _ = predict("00.four_ranks_time")._repr_mimebundle_()
    assert "A number of ms." in number["text/html"]


def test_markup_in_ones_own_question_stays_text() -> None:
    evil = "<img src=x onerror=alert(1)>"
    mine = predict(question=evil, choices=[evil, "b"], inputs={evil: evil})
    data, _ = mine._repr_mimebundle_()
    assert "<img" not in data["text/html"]
    assert data["text/html"].count("&lt;img") == 4


def test_one_prediction_is_one_widget() -> None:
    prediction = predict("00.four_ranks")
    first, _ = prediction._repr_mimebundle_()
    second, _ = prediction._repr_mimebundle_()
    view = "application/vnd.jupyter.widget-view+json"
    assert first[view]["model_id"] == second[view]["model_id"]
