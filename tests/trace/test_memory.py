"""What each rank held at its peak, from marks written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labkit.trace import CLUSTERS, About, Trace
from labkit.trace.log import Log, merge
from labkit.trace.memory import PARTS, Held, held, write


def moment(rank: int, start: float, *sizes: int) -> list[dict[str, Any]]:
    """The four marks of one moment."""
    return [
        {"rank": rank, "kind": "memory", "name": name, "start": start, "bytes": size}
        for name, size in zip(PARTS, sizes, strict=True)
    ]


def step(rank: int, start: float, end: float, i: int) -> dict[str, Any]:
    span = {"rank": rank, "kind": "span", "name": "step", "tags": {"step": i}}
    return span | {"start": start, "end": end}


# Most is held at 2, when no part but the activations is at its own largest.
ROWS = [
    *moment(0, 1, 10, 0, 0, 20),
    *moment(0, 2, 10, 0, 5, 90),
    *moment(0, 3, 10, 10, 20, 0),
    step(0, 0, 2.5, 0),
    *moment(0, 4, 10, 0, 20, 50),
    step(0, 2.5, 5, 1),
    *moment(1, 3, 10, 10, 20, 0),
    step(1, 0, 5, 0),
]


def test_the_peak_is_of_the_sum_and_its_parts_are_of_one_moment(make: Any) -> None:
    assert held(make(ROWS)) == (Held(0, 10, 0, 5, 90), Held(1, 10, 10, 20, 0))
    assert [h.total for h in held(make(ROWS))] == [105, 40]


def test_of_a_step_it_is_the_peak_inside_it_with_what_was_held_before(make: Any) -> None:
    trace = make(ROWS)
    assert trace.memory(step=0) == (Held(0, 10, 0, 5, 90), Held(1, 10, 10, 20, 0))
    # It begins with what step 0 has left, and rank 1 has no step 1.
    assert trace.memory(step=1) == (Held(0, 10, 0, 5, 90),)
    quiet = make([*ROWS[:12], step(0, 0, 3.5, 0), step(0, 3.5, 5, 1)])
    assert quiet.memory(step=1) == (Held(0, 10, 10, 20, 0),)


def test_marks_of_one_moment_are_one_statement(make: Any) -> None:
    rows = [*moment(0, 1, 0, 0, 0, 100), *moment(0, 2, 100, 0, 0, 0)]
    assert held(make(rows)) == (Held(0, activations=100),)  # never 200


def test_a_part_without_a_mark_is_nothing_and_other_names_are_not_counted(make: Any) -> None:
    rows = [
        {"rank": 1, "kind": "memory", "name": "activations", "start": 0, "bytes": 7},
        {"rank": 1, "kind": "memory", "name": "cache", "start": 1, "bytes": 1000},
        {"rank": 1, "kind": "wire", "name": "sent", "start": 1, "bytes": 1000},
    ]
    assert held(make(rows)) == (Held(1, activations=7),)


def test_a_trace_without_marks_has_no_memory_to_tell(make: Any) -> None:
    trace = make([step(0, 0, 1, 0)])
    assert held(trace) == ()
    assert trace.summary().memory == ()


def test_a_step_that_is_not_there_is_refused(make: Any) -> None:
    with pytest.raises(KeyError, match=r"no step 7 in this trace \(steps: 0, 1\)"):
        held(make(ROWS), step=7)


def test_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="weights=-1"):
        Held(0, weights=-1)


def test_marks_of_a_log_are_read_back_from_a_file_and_after_retiming(tmp_path: Path) -> None:
    log = Log(0)
    write(log, Held(0, 1, 2, 3, 4))
    sum(range(10000))
    write(log, Held(0, 4, 3, 2, 2))
    trace = merge([log.finish()], About(ranks=1))
    assert trace.memory() == (Held(0, 4, 3, 2, 2),)
    trace.save(tmp_path / "trace")
    assert Trace.load(tmp_path / "trace").memory() == trace.memory()
    cluster = next(iter(CLUSTERS.values()))
    assert trace.retime(cluster, compute="cpu").memory() == trace.memory()


def test_the_summary_has_a_table_of_the_peaks(make: Any) -> None:
    text = str(make(ROWS).summary())
    assert "Memory at each rank's peak" in text
    table = text[text.index("Memory") :].splitlines()
    assert table[1].split() == ["rank", *PARTS, "total"]
    assert table[2].replace("B", "").split() == ["0", "10", "0", "5", "90", "105"]
    assert "Memory at each rank&#x27;s peak" in make(ROWS).summary()._repr_html_()
