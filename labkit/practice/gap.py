"""The gap between what was predicted and what the run gave, in words.

What is told depends on the numbers alone. Where nothing was predicted, the words hold no measured
number that an answer is known for, only that the run agrees with it: a lesson that nobody touched
says the same in every run.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from labkit.practice.question import Question
from labkit.practice.words import SECONDS, quantity, ratio

__all__ = ["Gap", "gap"]

Value = str | float

_SURE_AND_WRONG = "You were sure of it, so this is the one to look at twice."
_RIGHT_AND_UNSURE = "You were not sure, and had it right: now you can be."
_NEAR = 0.02  # how near a number is to what a misconception gives, to be told about it


@dataclass(frozen=True, repr=False)
class Gap:
    """What a comparison says.

    Parameters
    ----------
    said : a choice's id or a number; None: no prediction was locked
    actual : a choice's id, or a number in the question's unit
    right : whether they agree; None: nothing was said, or the run itself was not as expected
    words : what is told, a paragraph each
    because : why it is so, where the question says it
    """

    question: Question
    said: Value | None
    sure: bool
    actual: Value
    right: bool | None
    words: tuple[str, ...]
    because: str = ""

    def __repr__(self) -> str:
        return " ".join(self.words)

    def _repr_html_(self) -> str:
        first, *rest = self.words
        return f"<p><b>{escape(first)}</b></p>" + "".join(f"<p>{escape(text)}</p>" for text in rest)


def gap(question: Question, said: Value | None, sure: bool, actual: Value) -> Gap:
    """Compare a locked answer with what the run gave.

    Parameters
    ----------
    said, actual : ids of choices, or numbers in the question's unit; `said` None: nothing locked
    """
    tell = _choices if isinstance(actual, str) else _numbers
    right, words = tell(question, said, sure, actual)  # type: ignore[arg-type]
    if right is False and sure:
        words.append(_SURE_AND_WRONG)
    if right and not sure:
        words.append(_RIGHT_AND_UNSURE)
    told = tuple(word for word in words if word)
    why = question.choice(actual).because if isinstance(actual, str) else question.because
    return Gap(question, said, sure, actual, right, told, why)


def locked_words(question: Question, value: Value, sure: bool) -> str:
    """An answer as people say it: "80 ms, sure"."""
    if isinstance(value, str):
        said = f"“{question.choice(value).text}”"
    else:
        said = quantity(value, question.unit)
    return f"{said}, {'sure' if sure else 'not sure'}"


def _choices(
    question: Question, said: str | None, sure: bool, actual: str
) -> tuple[bool | None, list[str]]:
    given = question.choice(actual)
    odd = ""
    if question.right not in (None, actual):
        expected = question.choice(question.right or "").text
        odd = f"Expected was “{expected}”: this run was not like that. Run it again."
    if said is None:
        return None, [f"No prediction was locked. The run gave: “{given.text}”.", odd]
    chosen = locked_words(question, said, sure)
    if said == actual:
        words = [f"You said {chosen}. So it was.", given.because]
    else:
        words = [
            f"You said {chosen}. It was “{given.text}”.",
            question.choice(said).because,
            given.because,
        ]
    return None if odd else said == actual, [*words, odd]


def _numbers(
    question: Question, said: float | None, sure: bool, actual: float
) -> tuple[bool | None, list[str]]:
    unit, answer = question.unit, question.answer
    verb = "took" if unit in SECONDS else "was"
    percent = f"{100 * question.tolerance:g} %"
    expected = answer is None or _near(answer, actual, question.tolerance)
    odd = "" if expected or answer is None else f"The formula gives {quantity(answer, unit)}."
    if said is None:
        found = quantity(actual, unit)
        if expected and answer is not None:
            found = f"{quantity(answer, unit)}, give or take {percent}"
        return None, [f"No prediction was locked. It {verb} {found}.", odd]
    start = f"You said {locked_words(question, said, sure)}."
    it = f"It {verb} {quantity(actual, unit)}"
    right = _near(said, actual, question.tolerance)
    words = [f"{start} {it}: {'within ' + percent if right else ratio(said, actual, unit)}."]
    if not right:
        words += [one.because for one in question.known if _near(said, one.value, _NEAR)][:1]
    return right if expected else None, [*words, question.because, odd]


def _near(value: float, target: float, share: float) -> bool:
    return abs(value - target) <= share * abs(target)
