"""The page that a rank shares with its launcher: what is written there is read there, whole."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from labkit.runtime.calls import Call
from labkit.runtime.page import Main, Page, Reader, Standing
from labkit.trace.events import OPERATIONS, Group

GROUP = Group("7", "data", (1, 3))
COLLECTIVE = OPERATIONS.index("collective")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What `threads.is_alone` says; here a browser's or a server's threads may be about."""
    said = [True]
    monkeypatch.setattr("labkit.runtime.page.is_alone", lambda: said[0])
    return said


def fields(op: int, **more: Any) -> dict[str, Any]:
    given = {"op": op, "seq": op, "count": 10, "bytes": 40, "dtype": "float32", "where": "a.py:3"}
    return given | more


def both(tmp_path: Path) -> tuple[Page, Reader]:
    return Page(tmp_path / "page"), Reader(3, tmp_path / "page")


def test_a_call_is_read_as_it_was_written(tmp_path: Path) -> None:
    page, reader = both(tmp_path)
    group = page.group(GROUP)
    page.post(COLLECTIVE, "all_reduce", group, fields(5, reduction="SUM"), -1)
    page.post(OPERATIONS.index("send"), "send", group, fields(6, peer=1, tag=4, dtype=None), -1)
    assert reader.calls() == [
        Call(
            3, 5, "collective", "all_reduce", GROUP, 5, -1, -1, 10, 40, "float32", "SUM", "a.py:3"
        ),
        Call(3, 6, "send", "send", GROUP, 6, 1, 4, 10, 40, None, None, "a.py:3"),
    ]
    assert reader.calls() == []
    page.post(COLLECTIVE, "barrier", group, fields(7, where="bücher.py:1"), 3)
    (call,) = reader.calls()
    assert (call.op, call.where, call.whole) == (7, "bücher.py:1", 3)


def test_a_page_that_is_not_there_yet_says_nothing(tmp_path: Path) -> None:
    reader = Reader(0, tmp_path / "page")
    assert reader.calls() == []
    assert reader.standing() == Standing()
    (tmp_path / "page").write_bytes(b"\0" * 100)  # it is being made
    assert reader.calls() == []
    page = Page(tmp_path / "page")
    page.post(COLLECTIVE, "barrier", page.group(GROUP), fields(0), -1)
    assert len(reader.calls()) == 1
    reader.close()
    assert reader.calls() == []


def test_what_was_overwritten_counts_as_lost(tmp_path: Path) -> None:
    page, reader = both(tmp_path)
    group = page.group(GROUP)
    for op in range(10_000):
        page.post(COLLECTIVE, "all_reduce", group, fields(op), -1)
    got = [call.op for call in reader.calls()]
    assert got == list(range(got[0], 10_000))
    assert reader.lost == 10_000 - len(got) > 0
    page.post(COLLECTIVE, "all_reduce", group, fields(10_000), -1)
    assert [call.op for call in reader.calls()] == [10_000]


def test_a_page_without_room_for_more_text_loses_calls_not_the_run(tmp_path: Path) -> None:
    page, reader = both(tmp_path)
    group = page.group(GROUP)
    for op in range(300):
        page.post(COLLECTIVE, "all_reduce", group, fields(op, where=f"{op}{'x' * 900}:1"), -1)
    calls = reader.calls()
    assert [call.op for call in calls] == list(range(300))
    assert calls[0].where is not None
    assert calls[-1].where is None
    page.post(COLLECTIVE, "all_reduce", page.group(Group("8" * 900, "", ())), fields(300), -1)
    page.post(COLLECTIVE, "all_gather", group, fields(301, dtype="int8"), -1)
    (call,) = reader.calls()
    assert (call.name, call.dtype, reader.lost) == ("all_gather", "int8", 1)


def test_where_the_main_thread_stands(tmp_path: Path) -> None:
    page, reader = both(tmp_path)
    assert reader.standing() == Standing()
    assert page.wait(1 << 40, bounded=False)
    assert reader.standing() == Standing(Main.WAITING, (1 << 40,))
    page.go_on()
    assert reader.standing() == Standing()
    page.join(range(100, 200))
    assert reader.standing() == Standing(Main.JOINING, tuple(range(136, 200)))
    page.give_up(4)
    assert reader.standing() == Standing(Main.GAVE_UP, (4,))
    page.wait(5, bounded=True)
    assert not reader.standing().alone


def test_a_wait_of_another_thread_is_not_the_main_threads(tmp_path: Path) -> None:
    page, reader = both(tmp_path)
    told: list[bool] = []
    thread = threading.Thread(target=lambda: told.append(page.wait(3, bounded=False)))
    thread.start()
    thread.join()
    assert told == [False]
    assert reader.standing() == Standing()


def test_a_rank_whose_other_threads_may_speak_is_not_alone(
    tmp_path: Path, alone: list[bool]
) -> None:
    page, reader = both(tmp_path)
    for said in (False, True):
        alone[:] = [said]
        page.wait(0, bounded=False)
        assert reader.standing().alone == said
        page.join([0])
        assert reader.standing().alone == said


def test_a_reader_beside_a_writer_never_sees_half_a_call(tmp_path: Path) -> None:
    page, reader = both(tmp_path)
    groups = [page.group(Group(str(g), "", (g,))) for g in range(7)]
    count = 30_000

    def write() -> None:
        for op in range(count):
            told = fields(op, count=op * 3, bytes=op * 12, where=f"f.py:{op % 50}")
            page.post(COLLECTIVE, "all_reduce", groups[op % 7], told, op)

    thread = threading.Thread(target=write)
    thread.start()
    seen: list[Call] = []
    while thread.is_alive():
        seen += reader.calls()
    thread.join()
    seen += reader.calls()
    assert len(seen) + reader.lost == count
    assert seen
    for call in seen:
        op = call.op
        assert (call.elements, call.bytes, call.whole) == (op * 3, op * 12, op)
        assert call.where == f"f.py:{op % 50}"
        assert call.group == Group(str(op % 7), "", (op % 7,))
