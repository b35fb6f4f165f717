"""What a run says of a technique: the four cells of a row of the ledger, as numbers and in words.

FLOPs, bytes and memory are counted, so they are the same in every run; times and bytes on the wire
are not. `exact` tells only the first, and is what a notebook stores; `words` tells all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.practice.words import quantity, scaled
from labkit.trace.events import Trace
from labkit.trace.measures import rank_times
from labkit.trace.traffic import traffic, wire

__all__ = ["COLUMNS", "Cell", "measure"]

# Column of the table: the key it is stored under, and its head.
COLUMNS = {
    "computation": "computation",
    "memory": "memory a rank",
    "bytes": "bytes a step",
    "cost": "what it costs you",
}


@dataclass(frozen=True)
class Cell:
    """One filled cell.

    Parameters
    ----------
    column : a key of `COLUMNS`
    figures : the numbers behind it
    clock, ranks : of the run that filled it
    when : in UTC, ISO 8601
    """

    column: str
    figures: Mapping[str, Any]
    clock: str
    ranks: int
    when: str

    @property
    def exact(self) -> str:
        """What is the same in every run of the program; "" where nothing is."""
        f = self.figures
        if self.column == "computation":
            counted = scaled(f["flops"], "FLOP") if f["flops"] else "no FLOPs counted"
            return counted + (f", step {_time(f)}" if self.clock == "modelled" else "")
        if self.column == "memory":
            parts = ", ".join(f"{name} {scaled(size, 'B')}" for name, size in f["parts"].items())
            return f"{scaled(sum(f['parts'].values()), 'B')}: {parts}"
        if self.column == "bytes":
            if not f["calls"]:
                return "none"
            form = f["closed_form"]
            sent = "unknown" if form is None else scaled(form, "B")
            return f"payload {scaled(f['payload'], 'B')}, closed form {sent}"
        return self._waiting() if self.clock == "modelled" else ""

    @property
    def words(self) -> str:
        """All that the run said."""
        f = self.figures
        if self.column == "computation":
            step = "" if self.clock == "modelled" else f", step {_time(f)}"
            return f"{self.exact}{step}, computing {_share(f['busy'])} of it"
        if self.column == "bytes" and f["wire"] is not None:
            return f"{self.exact}, on the wire {scaled(f['wire'], 'B')}"
        return self.exact or self._waiting()

    @property
    def stamp(self) -> str:
        """By which run it was filled, and when."""
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        return f"{self.clock}, {ranks}, {self.when[:10]} {self.when[11:16]} UTC"

    def _waiting(self) -> str:
        f = self.figures
        exposed = f["skew"] + f["transfer"] + f["unsplit"]
        words = []
        if not f["calls"]:
            words.append("nothing is sent")
        else:
            parts = [
                f"{_share(f[part])} {text}"
                for part, text in (("skew", "for late ranks"), ("transfer", "while it moves"))
                if f[part] >= 0.005
            ]
            split = f" ({', '.join(parts)})" if parts else ""
            words.append(f"{_share(exposed)} of the step waits for communication{split}")
        if f["idle"] >= 0.005:
            words.append(f"{_share(f['idle'])} idle")
        return "; ".join(words)


def measure(trace: Trace, step: int | None = None) -> dict[str, dict[str, Any]]:
    """The figures of one step of `trace`, by column; "memory" only where it was measured.

    FLOPs, bytes and memory are of the rank that has most; shares are of all ranks together.

    Parameters
    ----------
    step : None: the last one

    Raises
    ------
    KeyError : there is no such step
    ValueError : the trace is empty
    """
    if not len(trace):
        raise ValueError("this run left no record: nothing to fill the ledger with")
    index = trace.steps[-1].index if step is None else step
    part = trace.step(index)
    (chosen,) = (s for s in trace.steps if s.index == index)
    times = rank_times(trace, [chosen])
    elapsed = sum(row.elapsed for row in times) or 1.0
    shares = {
        name: sum(getattr(row, name) for row in times) / elapsed
        for name in ("busy", "skew", "transfer", "unsplit", "idle")
    }
    payload: dict[int, int] = {}
    forms: dict[int, float] = {}
    calls, unknown = 0, False
    for row in traffic(part):
        calls = max(calls, row.calls)
        unknown |= row.closed_form is None
        payload[row.rank] = payload.get(row.rank, 0) + row.payload
        forms[row.rank] = forms.get(row.rank, 0.0) + (row.closed_form or 0.0)
    counted = wire(trace, chosen)
    found: dict[str, dict[str, Any]] = {
        "computation": {
            "flops": max(_flops(part).values(), default=0),
            "step": chosen.duration,
            "unit": trace.about.unit,
            "busy": shares.pop("busy"),
        },
        "bytes": {
            "calls": calls,
            "payload": max(payload.values(), default=0),
            "closed_form": None if unknown else max(forms.values(), default=0.0),
            "wire": None if counted is None else max(w.sent for w in counted),
        },
        "cost": {"calls": calls, **shares},
    }
    memory = getattr(trace, "memory", None)
    if memory and (held := memory(index)):
        peak = max(held, key=lambda one: one.total)
        found["memory"] = {"parts": peak.parts}
    return found


def _flops(part: Trace) -> dict[int, int]:
    """FLOPs of each rank's main thread."""
    c = part.columns
    rows = part.where("compute") & (c["thread"] == 0)
    found: dict[int, int] = {}
    for rank in set(c["rank"].tolist()):
        mine = rows & (c["rank"] == rank)
        found[rank] = int((c["flops_end"][mine] - c["flops_start"][mine]).sum())
    return found


def _time(figures: Mapping[str, Any]) -> str:
    step, unit = figures["step"], figures["unit"]
    return quantity(step * 1e3, "ms") if unit == "s" else quantity(step, unit)


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"
