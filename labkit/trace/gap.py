"""The gap between what was predicted and what happened, told where it is largest.

Both traces are of one program. A rank's step is cut into parts that add up to it: what it computed,
by name; *wait*, what communication held it; *idle*, what was not recorded. Part is set beside part.
The gap is the prediction's error, and belongs beside the prediction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.trace.events import About, Step, Trace
from labkit.trace.measures import step_times
from labkit.trace.tables import Table, brief, html, plain, time

__all__ = ["Gap", "Part", "gap"]

WAIT, IDLE = "wait", "idle"


@dataclass(frozen=True)
class Part:
    """A part of one rank's step: `name` is what was computed, or "wait", or "idle"."""

    step: int
    rank: int
    name: str
    predicted: float
    happened: float

    @property
    def difference(self) -> float:
        found = self.happened - self.predicted
        rounding = 1e-12 * max(self.happened, self.predicted)
        return found if abs(found) > rounding else 0.0

    @property
    def error(self) -> float | None:
        """The difference as a share of the prediction; None where that is nothing."""
        return self.difference / self.predicted if self.predicted else None


@dataclass(frozen=True, repr=False)
class Gap:
    """Two traces side by side.

    Parameters
    ----------
    predicted, happened : what the two traces are
    steps : of each step by number, its time in the one and in the other
    parts : of each step and rank; a rank's parts add up to its step
    """

    predicted: About
    happened: About
    steps: tuple[tuple[int, float, float], ...]
    parts: tuple[Part, ...]

    @property
    def times(self) -> tuple[float, float]:
        """Time of a step, the mean of all: predicted, happened."""
        count = max(len(self.steps), 1)
        return sum(p for _, p, _ in self.steps) / count, sum(h for _, _, h in self.steps) / count

    @property
    def error(self) -> float | None:
        """What happened beyond the prediction, as a share of it; None where that is nothing."""
        predicted, happened = self.times
        return happened / predicted - 1 if predicted else None

    @property
    def worst(self) -> Part | None:
        """The part that differs most, in the direction of the whole; of all steps together.

        A wait is the echo of something else: work that makes up half of the gap goes before it.
        """
        way = 1.0 if self._whole >= 0 else -1.0
        parts = sorted(self._summed(), key=lambda part: -way * part.difference)
        work = [part for part in parts if part.name not in (WAIT, IDLE)]
        found = next(iter([part for part in work[:1] if self._most(part)] or parts), None)
        return found if found is not None and way * found.difference > 0 else None

    @property
    def _whole(self) -> float:
        return sum(happened - predicted for _, predicted, happened in self.steps)

    def _most(self, part: Part) -> bool:
        """Whether a part makes up half of the gap, or more."""
        whole = self._whole
        return part.difference / whole >= 0.5 if whole else False

    def _summed(self) -> list[Part]:
        sums: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for part in self.parts:
            pair = sums[part.rank, part.name]
            pair[0] += part.predicted
            pair[1] += part.happened
        first = self.steps[0][0] if self.steps else 0
        return [Part(first, rank, name, *pair) for (rank, name), pair in sums.items()]

    @property
    def sentence(self) -> str:
        """The gap in words."""
        unit, word = self.happened.unit, self.happened.clock
        predicted, happened = self.times
        each = f"{len(self.steps)} steps, on average " if len(self.steps) > 1 else ""
        told = f"{each}predicted {brief(predicted, unit)}, {word} {brief(happened, unit)}"
        error = self.error
        if error is None:
            return f"{told}."
        if f"{abs(error):.1%}" == "0.0%":
            return f"{told}: as predicted."
        share = f"{abs(error):.0%}" if abs(error) >= 0.0095 else f"{abs(error):.1%}"
        told += f": {share.replace('%', ' %')} {'more' if error > 0 else 'less'}"
        worst = self.worst
        if worst is None:
            return f"{told}."
        part = "most of it" if self._most(worst) else "the largest part"
        return f"{told}; {part} in {worst.name} of rank {worst.rank}."

    def __repr__(self) -> str:
        clocks = f"{self.predicted.clock}, {self.happened.clock}"
        return f"Gap({clocks}, {len(self.steps)} steps, {self.happened.ranks} ranks)"

    def __str__(self) -> str:
        return "\n\n".join([self.sentence, *(plain(table) for table in self._tables())])

    def _repr_html_(self) -> str:
        return f"<p>{self.sentence}</p>" + "\n".join(html(table) for table in self._tables())

    def _tables(self) -> list[Table]:
        unit, word = self.happened.unit, self.happened.clock
        steps = Table(
            "Step time",
            ("step", "predicted", word, "error"),
            [
                (str(i), time(p, unit), time(h, unit), _percent(h / p - 1 if p else None))
                for i, p, h in self.steps
            ],
        )
        parts = Table(
            "Time by rank" + (", all steps together" if len(self.steps) > 1 else ""),
            ("rank", "part", "predicted", word, "difference", "error"),
            [
                (
                    str(part.rank), part.name, time(part.predicted, unit),
                    time(part.happened, unit), time(part.difference, unit), _percent(part.error),
                )
                for part in self._summed()
            ],
            labels=2,
        )  # fmt: skip
        return [steps, parts]


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error * 100:+.1f} %"


def gap(predicted: Trace, happened: Trace, step: int | None = None) -> Gap:
    """`happened` beside `predicted`, in all steps that both have or in one of them.

    Raises
    ------
    KeyError : one of the two has no such step
    ValueError : they have another number of ranks or another unit, or no step in common
    """
    for name in ("ranks", "unit"):
        ours, theirs = getattr(predicted.about, name), getattr(happened.about, name)
        if ours != theirs:
            raise ValueError(
                f"{name}: {ours} predicted, {theirs} happened; compare traces of one program"
            )
    if step is not None:
        pairs = [(predicted.find_step(step), happened.find_step(step))]
    else:
        found = {s.index: s for s in happened.steps}
        pairs = [(s, found[s.index]) for s in predicted.steps if s.index in found]
    if not pairs:
        raise ValueError("no step is in both traces: compare traces of one program")
    ours = _parts(predicted, [ours for ours, _ in pairs])
    theirs = _parts(happened, [theirs for _, theirs in pairs])
    keys = list(dict.fromkeys([*ours, *theirs]))
    parts = [Part(*key, ours.get(key, 0.0), theirs.get(key, 0.0)) for key in sorted(keys)]
    return Gap(
        predicted.about, happened.about,
        tuple((a.index, a.duration, b.duration) for a, b in pairs), tuple(parts),
    )  # fmt: skip


def _parts(trace: Trace, steps: Sequence[Step]) -> dict[tuple[int, int, str], float]:
    """Time by step, rank and part."""
    c = trace.columns
    rows = np.flatnonzero(trace.where("compute") & (c["thread"] == 0))
    found: dict[tuple[int, int, str], float] = {}
    for step, times in zip(steps, step_times(trace, steps), strict=True):
        for t in times:
            mine = rows[c["rank"][rows] == t.rank]
            ends = [np.clip(c[end][mine], *step.spans[t.rank]) for end in ("start", "end")]
            spent, names = ends[1] - ends[0], c["name"][mine]
            for name in np.unique(names[spent > 0]).tolist():
                text = trace.strings[name] if name >= 0 else "compute"
                found[step.index, t.rank, text] = float(spent[names == name].sum())
            found[step.index, t.rank, WAIT] = t.exposed
            if t.idle:
                found[step.index, t.rank, IDLE] = t.idle
    return found
