"""A prediction: asked before the run, locked by the learner, compared with what the run gave.

Whoever has guessed a number looks at the measured one with other eyes; that is all it is for. So
an answer counts only if it was locked before a run began, it stays until it is cleared on purpose,
and what is right reaches the page only once the run is over. Not to lock anything is fine.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from labkit.practice import content
from labkit.practice.gap import Gap, Value, gap, locked_words
from labkit.practice.progress import Progress, now
from labkit.practice.question import Question
from labkit.practice.words import SECONDS, quantity
from labkit.runtime.run import Run

__all__ = ["Closed", "Prediction", "predict"]

_SECTION = "predictions"
_TOO_LATE = (
    "A run has begun since this was asked, so an answer would be no prediction. "
    "Run this cell again, lock, and then run."
)


class Closed(RuntimeError):
    """It is too late to lock this prediction, or it is locked already."""


class Prediction:
    """One question, and the answer of this learner, if there is one. Made by `predict`.

    Attributes
    ----------
    question : what is asked; `Question.right`, `answer` and the sentences are for after the run
    gap : what `compare` said, or None before
    """

    def __init__(self, question: Question, progress: Progress | None = None) -> None:
        self.question = question
        self.gap: Gap | None = None
        self._progress = progress or Progress()
        self._guard = threading.RLock()  # a click may arrive on another thread than the cell's
        self._begun = Run.begun
        self._widget: Any = None
        self._record = self._stored()
        self.earlier = self._record is not None  # locked before this object was made

    @property
    def locked(self) -> bool:
        return self._record is not None

    @property
    def value(self) -> Value | None:
        """A choice's id, or a number in the question's unit; None when nothing is locked."""
        return None if self._record is None else self._record["value"]

    @property
    def sure(self) -> bool | None:
        return None if self._record is None else self._record["sure"]

    @property
    def when(self) -> str | None:
        """When it was locked, in UTC."""
        return None if self._record is None else self._record["when"]

    @property
    def seconds(self) -> float | None:
        """The locked time, for a timeline to draw: None without one, or where it is no time."""
        scale = SECONDS.get(self.question.unit)
        value = self.value
        return None if scale is None or not isinstance(value, float) else value * scale

    @property
    def said(self) -> str:
        """The locked answer in words, or "" """
        value = self.value
        return "" if value is None else locked_words(self.question, value, bool(self.sure))

    def lock(self, value: Value, sure: bool = False) -> None:
        """Lock an answer; the widget's button does the same.

        Parameters
        ----------
        value : a choice's id, or a number in the question's unit

        Raises
        ------
        Closed : it is locked already, it was compared, or a run has begun since it was asked
        ValueError : no such choice, or a number outside the range
        """
        with self._guard:
            if self.gap is not None:
                raise Closed("The run is over: this prediction is closed. again() opens it.")
            if self._record is not None:
                raise Closed(f"Locked already: {self.said}. again() clears it.")
            if Run.begun != self._begun:
                raise Closed(_TOO_LATE)
            self._record = {"value": self._checked(value), "sure": bool(sure), "when": now()}
            self._progress.put(_SECTION, self.question.id, self._record)
        self._refresh()

    def compare(
        self,
        actual: Value,
        *,
        tolerance: float | None = None,
        buckets: Mapping[str, tuple[float, float]] | None = None,
    ) -> Gap:
        """Close the prediction and say how far it was from what the run gave.

        Parameters
        ----------
        actual : a number in the question's unit, or a choice's id
        tolerance : share of the measured number within which a prediction is right
        buckets : choice id → (from, below): which measured numbers mean this choice, in place of
            the question's own rule

        Raises
        ------
        ValueError : `actual` is not finite, is no choice, or no rule says which choice it means
        """
        with self._guard:
            question = self.question.adjusted(tolerance, buckets)
            outcome = _outcome(question, actual)
            self.gap = gap(question, self.value, bool(self.sure), outcome)
            if self._record is not None:
                told = {"right": self.gap.right, "actual": outcome, "compared": now()}
                self._record = {**self._record, **told}
                self._progress.put(_SECTION, self.question.id, self._record)
        self._refresh()
        return self.gap

    def again(self) -> None:
        """Clear the locked answer and open the question for the next run."""
        with self._guard:
            if self._record is not None:
                self._progress.drop(_SECTION, self.question.id)
            self._record = self.gap = None
            self._begun = Run.begun
            self.earlier = False
        self._refresh()

    def __repr__(self) -> str:
        id = self.question.id
        short = id if len(id) <= 48 else f"{id[:47]}…"
        state = "locked" if self.locked else "not locked"
        return f"Prediction({short!r}, {state}{', compared' if self.gap else ''})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        from labkit.widgets.predict import Predict

        if self._widget is None:
            self._widget = Predict(self)
        return self._widget._repr_mimebundle_(include=include, exclude=exclude)

    def _refresh(self) -> None:
        if self._widget is not None:
            self._widget.refresh()

    def _stored(self) -> dict[str, Any] | None:
        """What was locked, if it still answers this question."""
        record = self._progress.get(_SECTION, self.question.id)
        try:
            if not isinstance(record["sure"], bool) or not isinstance(record["when"], str):
                return None
            return {**record, "value": self._checked(record["value"])}
        except (TypeError, KeyError, ValueError):
            return None  # the question has changed since, or nothing was locked

    def _checked(self, value: Any) -> Value:
        if self.question.number is None:
            return self.question.choice(value).id
        number = _finite(value, self.question.id)
        low, high = self.question.number.low, self.question.number.high
        if not low <= number <= high:
            unit = self.question.unit
            raise ValueError(
                f"{quantity(number, unit)} lies outside {quantity(low, unit)} to "
                f"{quantity(high, unit)}."
            )
        return number


def predict(
    id: str | None = None,
    *,
    question: str | None = None,
    choices: Mapping[str, str] | Iterable[str] | None = None,
    number: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str] | None = None,
) -> Prediction:
    """Ask for a prediction: one of the course's, or one's own.

    Parameters
    ----------
    id : of the course's question, such as ``"00.four_ranks"``
    question : one's own, in place of `id`
    choices : texts to pick from, or id → text
    number : ``{"unit": "ms", "low": 10, "high": 1000, "log": True}``
    inputs : name → value with its unit: what one has to know

    Raises
    ------
    ValueError : no such question, or one's own is not as it has to be

    Examples
    --------
    >>> predict("00.four_ranks")
    Prediction('00.four_ranks', not locked)
    """
    own = {"choices": choices, "number": number, "inputs": inputs}
    if id is not None:
        if question is not None or any(value is not None for value in own.values()):
            raise ValueError("predict takes the id of a question, or a question of one's own")
        return Prediction(content.find(id))
    if question is None:
        raise ValueError('predict needs an id, as predict("00.four_ranks"), or question=…')
    table: dict[str, Any] = {"question": question}
    if choices is not None:
        pairs = choices.items() if isinstance(choices, Mapping) else [(c, c) for c in choices]
        table["choices"] = [{"id": key, "text": text} for key, text in pairs]
    for key, value in (("number", number), ("inputs", inputs)):
        if value is not None:
            table[key] = dict(value)
    return Prediction(content.build(question, table, "predict:"))


def _outcome(question: Question, actual: Any) -> Value:
    """What the run gave: a choice's id, or a number."""
    if isinstance(actual, str):
        if question.number is not None:
            raise ValueError(f"{question.id} asks for a number of {question.unit}, not {actual!r}")
        return question.choice(actual).id
    number = _finite(actual, question.id)
    return number if question.number is not None else question.meant_by(number).id


def _finite(value: Any, id: str) -> float:
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{id}: {value!r} is not a finite number")
    return number
