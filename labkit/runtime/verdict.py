"""How a run failed, and how that is told.

The ranks have said what they could: outcomes, exit codes, pages, stacks. Here it is decided which
failure the others follow from, and put into words that name rank, operation and line.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from labkit.runtime import stacks, travel
from labkit.runtime.budget import Overrun
from labkit.runtime.calls import ANYONE, Call, calls_of, told_place
from labkit.runtime.failures import (
    Deadlock,
    Entered,
    LaunchError,
    Mismatch,
    OutOfMemory,
    RankFailed,
    TimedOut,
    Wait,
    ranks_in_words,
)
from labkit.runtime.faults import word_of
from labkit.runtime.match import Clash, first_clash
from labkit.runtime.start import Ended
from labkit.runtime.watch import Watch
from labkit.runtime.worker import Outcome

# Errors that only say that another rank has gone.
_SECONDARY = re.compile(
    r"closed by peer|reset by peer|broken pipe|timed out|timeout|connection refused|"
    r"aborted operation|socket closed|remote process",
    re.IGNORECASE,
)


@dataclass(eq=False)
class Facts:
    """What a launcher knows of a run: it fills this in while it follows the ranks.

    Parameters
    ----------
    ranks : how many
    folder : the run's folder
    pids : process numbers by rank
    lines : what each rank has printed
    watch : the ranks' pages; None where the run is not recorded
    """

    ranks: int
    folder: Path
    pids: Sequence[int]
    lines: Sequence[Sequence[str]]
    watch: Watch | None = None
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    ended: dict[int, Ended] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)  # ranks that were ended on purpose, by us

    @property
    def finished(self) -> list[int]:
        return sorted(r for r, o in self.outcomes.items() if o.error is None)

    @property
    def dead(self) -> list[int]:
        return sorted(r for r in self.ended if r not in self.outcomes)

    @property
    def alive(self) -> dict[int, int]:
        """Process numbers of the ranks that are still at it."""
        gone = {*self.ended, *self.outcomes}
        return {r: self.pids[r] for r in range(self.ranks) if r not in gone}

    def failed(self) -> bool:
        return bool(self.dead) or any(o.error for o in self.outcomes.values())


def first_failure(facts: Facts) -> LaunchError | None:
    """The failure that the others follow from, once all ranks have ended; None if all went well.

    Calls that do not fit come first: what ranks raise or die of afterwards follows from them. Then
    errors that do not just say that another rank has gone; then the ranks' own stamps.
    """
    if (clash := clash_of(facts)) is not None:
        return mismatch(clash)
    candidates: list[tuple[bool, int, int]] = []
    for rank in range(facts.ranks):
        outcome = facts.outcomes.get(rank)
        if outcome is None and rank not in facts.killed and rank in facts.ended:
            candidates.append((False, facts.ended[rank].stamp, rank))
        elif outcome is not None and outcome.error is not None:
            candidates.append((_is_secondary(outcome), outcome.stamp, rank))
    if not candidates:
        missing = [r for r in range(facts.ranks) if r not in facts.outcomes]
        return RankFailed(f"rank {missing[0]} left no result", missing[0]) if missing else None
    _, _, rank = min(candidates)
    outcome = facts.outcomes.get(rank)
    return _raised(facts, rank, outcome) if outcome else _died(facts, rank)


def clash_of(facts: Facts) -> Clash | None:
    """Calls that met and do not fit, from the pages; where those were overrun, from the logs."""
    watch = facts.watch
    if watch is None or watch.clash is not None or watch.complete:
        return None if watch is None else watch.clash
    records = [o.record for o in facts.outcomes.values() if o.record is not None]
    return first_clash(call for record in records for call in calls_of(record))


def deadlock(facts: Facts, waits: Mapping[int, Call], seconds: float) -> Deadlock:
    """Ranks that can never go on, with what each stands in.

    Parameters
    ----------
    waits : the call that each rank of the set waits for
    seconds : for how long nothing has moved
    """
    assert facts.watch is not None
    told = []
    for rank, call in waits.items():
        missing = tuple(facts.watch.missing(call))
        told.append(Wait(rank, str(call), missing, call.where or ""))
    finished, dead = tuple(facts.finished), tuple(facts.dead)
    other = [r for r in facts.alive if r not in waits]
    doing = stacks.ask(facts.folder, {r: facts.pids[r] for r in other}) if other else {}
    lines = {
        w.rank: f"waits in {w.operation} for {_named(w.waits_for)}, at {told_place(w.where)}"
        for w in told
    }
    for rank, call in waits.items():
        if facts.watch.withdrawn(call):
            what = "receive" if call.kind == "send" else "send"
            lines[rank] += f" (the {what} of rank {call.peer} is gone: its handle was not kept)"
    lines |= dict.fromkeys(finished, "has finished") | dict.fromkeys(dead, "is dead")
    lines |= {r: doing.get(r, "running") for r in other}
    waited_for = {r for w in told for r in w.waits_for}
    late = waited_for - set(waits)  # they have finished: a death is told as what it is
    gone = f" for {'ranks that have' if len(late) > 1 else 'a rank that has'} finished"
    if len(told) == 1 and waited_for <= set(waits):
        what = f"rank {told[0].rank} waits for itself"
    elif late == waited_for:
        what = f"{ranks_in_words(list(waits))} {'wait' if len(told) > 1 else 'waits'}{gone}"
    else:
        what = f"{ranks_in_words(list(waits))} wait for each other"
        what += f" and{gone}" if late else ""
    still = f"; nothing has moved for {seconds:g} s" if seconds else ""
    body = "".join(f"\n  rank {r}: {lines[r]}" for r in sorted(lines))
    return Deadlock(f"{what}{still}{body}", tuple(told), finished, dead)


def mismatch(clash: Clash) -> Mismatch:
    """Calls that met and do not fit, with the place of each."""
    entered = tuple(Entered(c.rank, str(c), c.where or "") for c in clash.calls)
    first, last = clash.calls[0], clash.calls[-1]
    if clash.what == "order":
        what = (
            f"ranks {first.rank} and {last.rank} entered two collectives in a different order, "
            "and their results are mixed"
        )
    elif first.kind == "collective":
        what = (
            f"ranks {first.rank} and {last.rank} met in collective #{first.seq} of their group "
            f"with {_WORDS[clash.what]}"
        )
    else:
        what = f"rank {first.rank} sends and rank {last.rank} receives with {_WORDS[clash.what]}"
    body = "".join(f"\n  rank {e.rank}: {e.operation}, at {told_place(e.where)}" for e in entered)
    return Mismatch(what + body, clash.what, entered)


_WORDS = {
    "kind": "different operations",
    "root": "different roots",
    "reduction": "different reductions",
    "dtype": "different dtypes",
    "size": "different sizes",
}


def timed_out(facts: Facts, timeout: float) -> TimedOut:
    """The run took too long: what each rank was doing, and what others wait for it to do."""
    doing = stacks.ask(
        facts.folder, {r: p for r, p in enumerate(facts.pids) if r not in facts.ended}
    )
    owed = _owed(facts)
    lines = []
    for rank in range(facts.ranks):
        if rank in facts.outcomes:
            lines.append(f"  rank {rank}: finished")
        elif rank in facts.ended:
            lines.append(f"  rank {rank}: dead")
        else:
            owes = f" and {owed[rank]}" if rank in owed else ""
            lines.append(f"  rank {rank}: {doing.get(rank, 'running')}{owes}")
    message = f"the run took longer than timeout={timeout:g} s. What each rank was doing:\n"
    return TimedOut(message + "\n".join(lines) + _told_last_operations(facts))


def _owed(facts: Facts) -> dict[int, str]:
    """What a rank has not done yet, and another waits for: the first such thing."""
    found: dict[int, str] = {}
    watch = facts.watch
    if watch is None:
        return found
    for waiting in range(facts.ranks):
        call = watch.unmet(waiting)
        for rank in watch.missing(call) if call is not None else ():
            assert call is not None
            if call.kind == "collective":
                found.setdefault(rank, f"has not entered {call.title}")
            elif call.kind == "send":
                found.setdefault(rank, f"has not received from rank {waiting}")
            elif call.peer != ANYONE:
                found.setdefault(rank, f"has not sent to rank {waiting}")
    return found


def _raised(facts: Facts, rank: int, outcome: Outcome) -> LaunchError:
    assert outcome.error is not None
    if outcome.overrun is not None:
        return _out_of_memory(facts, outcome.overrun)
    if outcome.error.kind == Mismatch.__name__:  # the rank itself has found it
        words = outcome.error.text.strip().partition(": ")[2]
        return Mismatch(_with_places(words), "buffer")
    secondary = _is_secondary(outcome)
    if secondary and (waits := _waited_for_finished(facts)):
        return deadlock(facts, waits, 0)
    told = outcome.error.render()
    stage = {
        "unpack": " while it took its function and arguments apart",
        "join": " while it joined the group",
        "result": " when it handed back its result",
    }.get(outcome.stage, "")
    message = f"rank {rank} failed{stage}"
    if secondary:
        early = [r for r in facts.finished if facts.outcomes[r].stamp < outcome.stamp]
        if early:
            who = ranks_in_words(early)
            message += f" ({who} had finished by then, and could not take part any more)"
        message += _told_last_operations(facts)  # who is behind shows in their counts
    return RankFailed(f"{message}\n\n{told.rstrip()}", rank, told)


def _waited_for_finished(facts: Facts) -> dict[int, Call]:
    """The calls that broke off since each rank that was waited for had finished, and left."""
    found = {}
    for rank in range(facts.ranks) if facts.watch is not None else ():
        assert facts.watch is not None
        call = facts.watch.gave_up(rank)
        if call is not None and set(facts.watch.missing(call)) <= set(facts.finished):
            found[rank] = call
    return found


def _out_of_memory(facts: Facts, first: Overrun) -> OutOfMemory:
    """Of ranks that failed alike the lowest is told, so that a run is told alike each time."""
    short = {r: o for r, o in sorted(facts.outcomes.items()) if o.overrun is not None}
    for rank, outcome in short.items():
        overrun, error = outcome.overrun, outcome.error
        assert overrun is not None
        assert error is not None
        if (overrun.held.parts, overrun.when) == (first.held.parts, first.when):
            own = [i for i, f in enumerate(error.frames) if not travel.is_installed(f.file)]
            frames = error.frames[: own[-1] + 1 if own else 1]  # what torch calls says nothing
            text = f"labkit.OutOfMemory: {overrun.when}, on rank {rank}\n"
            held = tuple(o.overrun.held for o in short.values() if o.overrun is not None)
            return OutOfMemory(overrun, held, replace(error, frames=frames, text=text).render())
    raise AssertionError("one of them is the first")


def _died(facts: Facts, rank: int) -> RankFailed:
    code = facts.ended[rank].code
    step = word_of(rank, facts.folder)
    if step is not None:  # told alike each time, so without what the others were doing
        return RankFailed(f"rank {rank} was killed at step {step}, as the fault asked", rank)
    if code < 0:
        with contextlib.suppress(ValueError):
            how = f"was killed by {signal.Signals(-code).name}"
        what = {-9: " (by hand, or because memory ran out)", -6: " (an abort inside C++)"}
        message = f"rank {rank} {how}{what.get(code, '')}"
        where = stacks.last(facts.folder, rank)
        message += f", {where}" if where else ""
    else:
        message = f"rank {rank} ended its process with exit code {code} before it had a result"
    message += _told_last_operations(facts)
    said = facts.lines[rank][-5:]
    if said:
        message += f"\nlast lines of rank {rank}:\n" + "\n".join(f"  {s}" for s in said)
    return RankFailed(message, rank)


def _told_last_operations(facts: Facts) -> str:
    calls = facts.watch.last() if facts.watch is not None else ()
    lines = [f"\n  rank {c.rank}: {c} at {told_place(c.where)}" for c in calls]
    return "\nlast operation of each rank:" + "".join(lines) if lines else ""


def _is_secondary(outcome: Outcome) -> bool:
    return outcome.error is not None and bool(_SECONDARY.search(outcome.error.text))


def _named(ranks: Sequence[int]) -> str:
    return ranks_in_words(list(ranks)) if ranks else "nobody"


def _with_places(text: str) -> str:
    return re.sub(r"@(.+:\d+)$", lambda m: "at " + told_place(m[1]), text, flags=re.MULTILINE)
