"""All content is whole, and what is not is refused by file and key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from labkit.practice import content
from labkit.practice.content import BadContent, find, read_file
from labkit.practice.question import Question

FILES = sorted(content.FOLDER.glob("*.toml"))
ALL = [question for path in FILES for question in read_file(path)]
LESSONS = Path(__file__).parents[2] / "notebooks"

CHOICE: dict[str, Any] = {
    "question": "Which?",
    "inputs": {"a": "1 ms"},
    "right": "x",
    "choices": [
        {"id": "x", "text": "this", "because": "so", "below": 1.0},
        {"id": "y", "text": "that", "because": "so not", "from": 1.0},
    ],
}
NUMBER: dict[str, Any] = {
    "question": "How many?",
    "inputs": {"a": "1 ms"},
    "number": {"unit": "ms", "low": 1, "high": 100, "log": True},
    "answer": 10,
    "because": "so",
    "known": [{"value": 20, "because": "twice"}],
}


def test_the_lessons_ask() -> None:
    assert {path.stem for path in FILES} >= {"00_start_here", "01_data_parallel"}
    ids = [question.id for question in ALL]
    assert len(ids) == len(set(ids))
    prefixes = [path.stem.partition("_")[0] for path in FILES]
    assert len(prefixes) == len(set(prefixes)), "two files of one lesson"


@pytest.mark.parametrize("question", ALL, ids=lambda q: q.id)
def test_every_question_is_whole(question: Question) -> None:
    assert find(question.id) == question
    assert question.inputs
    if question.choices:
        assert question.right in {choice.id for choice in question.choices}
        assert len({choice.text for choice in question.choices}) == len(question.choices)
        assert all(choice.because for choice in question.choices)
        ruled = [choice for choice in question.choices if choice.ruled]
        assert len(ruled) in (0, len(question.choices)), "a rule for some choices only"
        ends = {choice.low for choice in ruled} | {choice.high for choice in ruled}
        assert not ruled or None in ends, "a measured number may mean no choice"
        for end in ends - {None}:
            assert question.meant_by(end)  # no gap between two choices
    else:
        assert question.answer is not None
        assert question.because
        assert question.known, "which numbers do misconceptions give?"


@pytest.mark.parametrize("question", ALL, ids=lambda q: q.id)
def test_content_is_plain_words(question: Question) -> None:
    texts = [question.question, question.because, *question.inputs, *question.inputs.values()]
    texts += [text for c in question.choices for text in (c.text, c.because)]
    texts += [one.because for one in question.known]
    for text in texts:
        assert "!" not in text
        assert "<" not in text.replace("A(N) < C", "")
        assert len(text) < 320


def test_right_answers_do_not_always_stand_in_one_place() -> None:
    places = {[c.id for c in q.choices].index(q.right or "") for q in ALL if q.choices}
    assert len(places) > 2


# The numbers that the questions rest on, worked out here again.


def test_the_answers_follow_from_the_inputs() -> None:
    step, reduce = 320, 170

    def takes(ranks: int, between_two: float = reduce) -> float:
        return step / ranks + 2 * (ranks - 1) / ranks * between_two

    assert find("00.four_ranks_time").answer == takes(4) == 335
    four = find("00.four_ranks")
    assert four.meant_by(step / takes(4)).id == four.right
    assert takes(4, find("00.break_even").answer or 0) == step
    assert find("01.bytes").answer == pytest.approx(2 * 3 / 4 * 5.76)
    growth = find("01.growth")
    assert growth.meant_by((2 * 999 / 1000) / (2 * 3 / 4)).id == growth.right
    assert find("01.overlapped").answer == overlapped(8, 20, 18)
    assert find("01.slow_link").answer == overlapped(8, 20, 30)
    assert find("01.memory").meant_by(4 + 4 + 8).id == "all"


def overlapped(layers: int, compute: float, send: float) -> float:
    """One link: a message goes when its layer is done and the one before it has gone."""
    free = 0.0
    for layer in range(1, layers + 1):
        free = max(free, layer * compute) + send
    return free


def test_equal_gradients_keep_the_gap() -> None:
    low, high = 1.0, 5.0
    for _ in range(100):
        mean = (low + high) / 2
        low, high = low - 0.1 * mean, high - 0.1 * mean
    assert find("01.ddp_weights").meant_by(high - low).id == find("01.ddp_weights").right


# What is wrong is refused.


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {toml(v)}' for key, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return repr(value) if not isinstance(value, str) else f'"{value}"'


def written(folder: Path, table: dict[str, Any], name: str = "03_mixed.toml") -> Path:
    path = folder / name
    path.write_text("[q]\n" + "".join(f"{key} = {toml(v)}\n" for key, v in table.items()))
    return path


def test_a_whole_question_is_read(tmp_path: Path) -> None:
    (question,) = read_file(written(tmp_path, CHOICE))
    assert question.id == "03.q"
    assert question.meant_by(0.5).id == "x"
    (question,) = read_file(written(tmp_path, NUMBER))
    assert question.known[0].value == 20.0
    assert find("03.q", tmp_path) == question


@pytest.mark.parametrize(
    ("table", "change", "told"),
    [
        (CHOICE, {"question": None}, "needs the key question"),
        (CHOICE, {"question": " "}, "question is empty"),
        (CHOICE, {"question": 3}, "question = 3: it is to be a str"),
        (CHOICE, {"inputs": None}, "needs inputs"),
        (CHOICE, {"inputs": {"a": 3}}, "inputs.a = 3: write a value with its unit"),
        (CHOICE, {"right": None}, "needs the key right"),
        (CHOICE, {"right": "z"}, "right = 'z' is none of its choices"),
        (CHOICE, {"colour": "red"}, "has no key colour"),
        (CHOICE, {"answer": 3}, "has no key answer"),
        (CHOICE, {"choices": None}, "needs choices or number"),
        (CHOICE, {"number": NUMBER["number"]}, "needs choices or number, one of the two"),
        (CHOICE, {"choices": [3, 4]}, r"choices\[0\] = 3: it is to be a table"),
        (CHOICE, {"choices": CHOICE["choices"][:1]}, "give two or more"),
        (CHOICE, {"choices": [*CHOICE["choices"], {"id": "x", "text": "b"}]}, "'x' is there twice"),
        (
            CHOICE,
            {"choices": [*CHOICE["choices"], {"id": "z"}]},
            r"choices\[2\] needs the key text",
        ),
        (
            CHOICE,
            {"choices": [*CHOICE["choices"], {"id": "z", "text": "z"}]},
            "choice 'z' needs the key because",
        ),
        (
            CHOICE,
            {"choices": [*CHOICE["choices"], {"id": "z", "text": "z", "because": "z", "from": 3}]},
            "'y' and 'z' overlap",
        ),
        (
            CHOICE,
            {"choices": [*CHOICE["choices"], {"id": "z", "text": "z", "from": 3, "below": 2}]},
            "from = 3 is not below 2",
        ),
        (NUMBER, {"answer": None}, "needs the key answer"),
        (NUMBER, {"answer": True}, "answer = True: it is to be a number"),
        (NUMBER, {"answer": 200}, "answer = 200 lies outside 1 to 100"),
        (NUMBER, {"because": None}, "needs the key because"),
        (NUMBER, {"tolerance": 2}, "tolerance = 2.0: use a share"),
        (NUMBER, {"known": [{"value": 10.5, "because": "b"}]}, "10.5 counts as the right answer"),
        (NUMBER, {"known": [{"value": 500, "because": "b"}]}, "known = 500 lies outside"),
        (NUMBER, {"known": [{"value": 50}]}, r"known\[0\] needs the key because"),
        (NUMBER, {"number": {"unit": "ms", "low": 5, "high": 2}}, "low = 5 is not below high"),
        (NUMBER, {"number": {"unit": "ms", "low": 0, "high": 20, "log": True}}, "begins above 0"),
        (NUMBER, {"number": {"low": 1, "high": 20}}, "number needs the key unit"),
    ],
)
def test_what_is_wrong_is_told_by_file_and_key(
    tmp_path: Path, table: dict[str, Any], change: dict[str, Any], told: str
) -> None:
    changed = {key: value for key, value in (table | change).items() if value is not None}
    with pytest.raises(BadContent, match=rf"^03_mixed\.toml: \[q\].*{told}"):
        read_file(written(tmp_path, changed))


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("03_a.toml", "[q", "03_a.toml: Expected"),
        ("03_a.toml", "[q]\n[q]\n", "03_a.toml: "),
        ("03_a.toml", "q = 3\n", "03_a.toml: q stands outside a question's table"),
        ("mixed.toml", "", "mixed.toml: call it after its lesson"),
    ],
)
def test_a_file_that_is_none_is_told(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadContent, match=told):
        read_file(tmp_path / name)


@pytest.mark.parametrize("id", ["00.four_rank", "four_ranks", "", "9.x", "../../etc", "00.*", "0*"])
def test_a_question_that_is_not_there_is_told_with_those_near(id: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"there is no prediction {id!r}. There is ")):
        find(id)
