"""What a prediction asks, as data. It is of one of two kinds.

choice  values that common misconceptions give, each with the sentence that is told for it once the
        run is over. A rule (`low`, `high`) may say which measured numbers mean a choice
number  a number to name by slider or field; `answer` is what the formula gives, `known` are the
        values that misconceptions give

None of the sentences, and not which is right, may reach the page before the run is over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

__all__ = ["TOLERANCE", "Choice", "Known", "Number", "Question"]

TOLERANCE = 0.1  # share of the measured number within which a prediction counts as right


@dataclass(frozen=True)
class Choice:
    """One answer to pick. `low` ≤ measured < `high` means this one; None: no rule."""

    id: str
    text: str
    because: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def ruled(self) -> bool:
        return self.low is not None or self.high is not None

    def holds(self, value: float) -> bool:
        """Whether a measured number means this choice."""
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        return self.ruled and low <= value < high


@dataclass(frozen=True)
class Known:
    """A wrong number that a misconception gives, and what to say about it."""

    value: float
    because: str


@dataclass(frozen=True)
class Number:
    """A number to name, between `low` and `high`, by a slider that is linear or logarithmic."""

    unit: str
    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Question:
    """One prediction's content; exactly one of `choices` and `number` is there."""

    id: str
    question: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()
    number: Number | None = None
    unit: str = ""  # of what is measured
    right: str | None = None  # id of a choice
    answer: float | None = None
    tolerance: float = TOLERANCE
    because: str = ""
    known: tuple[Known, ...] = ()

    def adjusted(
        self, tolerance: float | None, buckets: Mapping[str, tuple[float, float]] | None
    ) -> Question:
        """The same question with another tolerance, or other rules for its choices.

        Raises
        ------
        ValueError : not a share between 0 and 1, no such choice, or an empty range
        """
        if tolerance is not None and not 0 < tolerance < 1:
            raise ValueError(f"tolerance={tolerance!r}: use a share between 0 and 1")
        rules = {self.choice(id).id: ends for id, ends in (buckets or {}).items()}
        for id, (low, high) in rules.items():
            if not low < high:
                raise ValueError(f"buckets[{id!r}] = ({low}, {high}): the first is to be smaller")
        choices = self.choices
        if buckets is not None:
            none = (None, None)
            choices = tuple(
                replace(choice, low=low, high=high)
                for choice in self.choices
                for low, high in [rules.get(choice.id, none)]
            )
        return replace(self, choices=choices, tolerance=tolerance or self.tolerance)

    def choice(self, id: str) -> Choice:
        """The choice of this id.

        Raises
        ------
        ValueError : there is none
        """
        for choice in self.choices:
            if choice.id == id:
                return choice
        ids = ", ".join(choice.id for choice in self.choices)
        raise ValueError(f"{self.id} has no choice {id!r} (choices: {ids})")

    def meant_by(self, value: float) -> Choice:
        """The choice that a measured number means.

        Raises
        ------
        ValueError : no rule covers it
        """
        for choice in self.choices:
            if choice.holds(value):
                return choice
        raise ValueError(
            f"no choice of {self.id} says which of them {value:g} {self.unit} means: "
            "compare with the id of a choice, or give its choices `from` and `below`"
        )
