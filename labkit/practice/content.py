"""Questions from TOML: read and checked whole, refused by file and key.

A file a lesson, ``predictions/00_start_here.toml``; its table ``[four_ranks]`` is the question
``00.four_ranks``:

question, inputs            the words; a table of all one needs to work it out, each with its unit
choices = id, text, because, from, below; right, unit
                            what to pick from; measured numbers in [from, below) mean this choice
number = unit, low, high, log; answer, tolerance, because
                            the slider; what the formula gives, how near counts as right, and why
known = value, because      wrong numbers that misconceptions give
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from labkit.practice.question import TOLERANCE, Choice, Known, Number, Question

__all__ = ["FOLDER", "BadContent", "build", "find", "read_file"]

FOLDER = Path(__file__).parent / "predictions"


class BadContent(ValueError):
    """A question is not as it has to be: names the file, the question and the key."""


def find(id: str, folder: Path = FOLDER) -> Question:
    """The question of this id, such as ``00.four_ranks``.

    Raises
    ------
    ValueError : there is none
    BadContent : its file is not as it has to be
    """
    lesson = id.partition(".")[0]
    for path in sorted(folder.glob(f"{lesson}_*.toml")) if lesson.isalnum() else ():
        questions = {question.id: question for question in read_file(path)}
        if id in questions:
            return questions[id]
    known = [q.id for path in sorted(folder.glob("*.toml")) for q in read_file(path)]
    near = difflib.get_close_matches(id, known, n=3) or known
    raise ValueError(f"there is no prediction {id!r}. There is {', '.join(near) or 'none'}.")


def read_file(path: Path) -> tuple[Question, ...]:
    """All questions of a lesson's file.

    Raises
    ------
    BadContent : a key is missing, unknown, or of a wrong kind; names file, question and key
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadContent(f"{path.name}: {error}") from None
    lesson, _, rest = path.stem.partition("_")
    if not rest:
        raise BadContent(f"{path.name}: call it after its lesson, as 00_start_here.toml")
    found = []
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise BadContent(f"{path.name}: {name} stands outside a question's table")
        question = build(f"{lesson}.{name}", table, f"{path.name}: [{name}]")
        _complete(question, f"{path.name}: [{name}]")
        found.append(question)
    return tuple(found)


def build(id: str, table: Mapping[str, Any], where: str) -> Question:
    """A question from a table of TOML, or from the arguments of `labkit.predict`.

    Raises
    ------
    BadContent : see `read_file`; `where` begins the message
    """
    take = _Keys(table, where)
    question = take.text("question")
    inputs = take.get("inputs", dict, {})
    for key, value in inputs.items():
        if not isinstance(value, str) or not value.strip():
            raise BadContent(f"{where} inputs.{key} = {value!r}: write a value with its unit")
    if ("choices" in table) == ("number" in table):
        raise BadContent(f"{where} needs choices or number, one of the two")
    if "choices" in table:
        choices = _choices(take, where)
        unit, right = take.get("unit", str, ""), take.get("right", str, None)
        take.end()
        if right is not None and right not in {choice.id for choice in choices}:
            raise BadContent(f"{where} right = {right!r} is none of its choices")
        return Question(id, question, inputs, choices, unit=unit, right=right)
    number = _number(take.get("number", dict), f"{where} number")
    answer, tolerance = take.real("answer", None), take.real("tolerance", TOLERANCE)
    because = _line(take.get("because", str, ""))
    known = _known(take, where)
    take.end()
    if tolerance is None or not 0 < tolerance < 1:
        raise BadContent(f"{where} tolerance = {tolerance}: use a share between 0 and 1")
    for key, value in (("answer", answer), *(("known", one.value) for one in known)):
        if value is not None and not number.low <= value <= number.high:
            ends = f"{number.low:g} to {number.high:g}"
            raise BadContent(f"{where} {key} = {value:g} lies outside {ends}")
    for one in known:
        if answer is not None and abs(one.value - answer) <= tolerance * abs(answer):
            raise BadContent(f"{where} known {one.value:g} counts as the right answer {answer:g}")
    return Question(
        id, question, inputs, number=number, unit=number.unit, answer=answer, tolerance=tolerance,
        because=because, known=known,
    )  # fmt: skip


class _Keys:
    """The keys of a table, each taken once; what is left over is unknown."""

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        self.table = table
        self.where = where
        self.taken: set[str] = set()

    def get(self, key: str, kind: type, *default: Any) -> Any:
        self.taken.add(key)
        if key not in self.table:
            if default:
                return default[0]
            raise BadContent(f"{self.where} needs the key {key}")
        value = self.table[key]
        if not isinstance(value, kind):
            raise BadContent(f"{self.where} {key} = {value!r}: it is to be a {kind.__name__}")
        return value

    def text(self, key: str) -> str:
        value: str = self.get(key, str)
        if not value.strip():
            raise BadContent(f"{self.where} {key} is empty")
        return _line(value)

    def real(self, key: str, *default: float | None) -> float | None:
        self.taken.add(key)
        if key not in self.table and default:
            return default[0]
        value = self.table.get(key)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise BadContent(f"{self.where} {key} = {value!r}: it is to be a number")
        return float(value)

    def end(self) -> None:
        for key in self.table:
            if key not in self.taken:
                raise BadContent(f"{self.where} has no key {key}")


def _line(text: str) -> str:
    return " ".join(text.split())


def _tables(take: _Keys, key: str, where: str) -> Iterator[_Keys]:
    for i, table in enumerate(take.get(key, list, [])):
        if not isinstance(table, dict):
            raise BadContent(f"{where} {key}[{i}] = {table!r}: it is to be a table")
        yield _Keys(table, f"{where} {key}[{i}]")


def _choices(take: _Keys, where: str) -> tuple[Choice, ...]:
    found: list[Choice] = []
    for part in _tables(take, "choices", where):
        id, text, because = part.text("id"), part.text("text"), part.get("because", str, "")
        low, high = part.real("from", None), part.real("below", None)
        part.end()
        if id in {choice.id for choice in found}:
            raise BadContent(f"{part.where} id = {id!r} is there twice")
        if low is not None and high is not None and low >= high:
            raise BadContent(f"{part.where} from = {low:g} is not below {high:g}")
        found.append(Choice(id, text, _line(because), low, high))
    if len(found) < 2:
        raise BadContent(f"{where} choices: give two or more")
    _apart([choice for choice in found if choice.ruled], where)
    return tuple(found)


def _apart(ruled: list[Choice], where: str) -> None:
    """Refuse rules that overlap: a measured number means one choice."""
    ruled.sort(key=lambda choice: -math.inf if choice.low is None else choice.low)
    for one, other in pairwise(ruled):
        if one.high is None or other.low is None or one.high > other.low:
            raise BadContent(f"{where} choices: {one.id!r} and {other.id!r} overlap")


def _number(table: Mapping[str, Any], where: str) -> Number:
    take = _Keys(table, where)
    low, high = take.real("low"), take.real("high")
    unit, log = take.get("unit", str), take.get("log", bool, False)
    take.end()
    assert low is not None
    assert high is not None
    if low >= high:
        raise BadContent(f"{where} low = {low:g} is not below high = {high:g}")
    if log and low <= 0:
        raise BadContent(f"{where} low = {low:g}: a logarithmic slider begins above 0")
    return Number(unit, low, high, log)


def _known(take: _Keys, where: str) -> tuple[Known, ...]:
    found = []
    for part in _tables(take, "known", where):
        value, because = part.real("value"), part.text("because")
        part.end()
        assert value is not None  # a key without a default
        found.append(Known(value, because))
    return tuple(found)


def _complete(question: Question, where: str) -> None:
    """What a lesson's question needs, and one's own may lack."""
    if not question.inputs:
        raise BadContent(f"{where} needs inputs: what one has to know to work it out")
    if question.choices:
        if question.right is None:
            raise BadContent(f"{where} needs the key right")
        for choice in question.choices:
            if not choice.because:
                raise BadContent(f"{where} choice {choice.id!r} needs the key because")
    elif question.answer is None:
        raise BadContent(f"{where} needs the key answer")
    elif not question.because:
        raise BadContent(f"{where} needs the key because")
